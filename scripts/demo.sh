#!/usr/bin/env bash
# The main job, watched: real data on a mirrored volume lives through the death of a node, the loss of a drive and bits
# that rot, a source tree in a file system that is mounted twice lives through another death, and a page with charts shows
# how it went.
# Everything happens in a folder of its own, on loopback, and is removed at the end (KEEP=1 keeps it); the page stays.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
scripts/setup.sh --for demo
PATH="$PATH:/usr/sbin:/sbin" # mke2fs and e2fsck, which are not on everybody's PATH
if [ -z "${WEFT:-}" ]; then
  echo "== Building weft (release)"
  scripts/build.sh
fi
weft="${WEFT:-${CARGO_TARGET_DIR:-$top/target}/release/weft}" # WEFT=/usr/bin/weft shows one that is there already
page="${DEMO_REPORT:-$top/weft-demo-report.html}"
port="${DEMO_PORT:-4800}" # the first of some twenty

nodes=4 drives=2 drive_mib=1536 image_mib=1024 rotten=8
need_mib=$((nodes * drives * drive_mib + 3 * image_mib + 512))
room=${DEMO_DIR:-${TMPDIR:-/tmp}}
mkdir -p "$room"
free_mib=$(df --output=avail -BM "$room" | tail -1 | tr -dc 0-9)
if [ "$free_mib" -lt "$need_mib" ]; then
  echo "error: the demo needs $need_mib MiB in $room, found $free_mib MiB free" >&2
  echo "hint: DEMO_DIR=/path/with/room make demo" >&2
  exit 1
fi
# Always a new folder: it is removed at the end, and what else is in $room is none of the demo's business.
dir=$(mktemp -d "$room/weft-demo.XXXXXX")

fabric="$dir/fabric" socket="$dir/nbd.sock" serve_pid='' fio_pid='' watch_pid='' mounted=''
uri="nbd+unix:///demo?socket=$socket"
w() { "$weft" --fabric "$fabric" "$@"; }
now() { date +%s.%N; }
seconds() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", b - a }'; }
rate() { awk -v mib="$1" -v a="$2" -v b="$3" 'BEGIN { printf "%.0f", mib / (b - a) }'; }
say() { printf '\n== %s\n' "$*"; }
row() { printf '  %-46s %s\n' "$1" "$2"; }
fail() { # message [file...]: the files say more
  echo "error: $1" >&2
  shift
  [ $# -eq 0 ] || tail -n 40 "$@" >&2
  exit 1
}
# What the demo does stands among the fabric's own events, and so on the charts.
mark() { w events --add "$*" >/dev/null; }

clean_up() {
  status=$?
  trap '' INT TERM
  set +e
  for at in $mounted; do "$weft" umount "$at" --force >/dev/null 2>&1; done
  for pid in $fio_pid $watch_pid $serve_pid; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; done
  if [ "$status" -ne 0 ] && [ "$status" -ne 130 ]; then
    echo "The demo failed. Logs of the fabric:" >&2
    tail -n 5 "$fabric"/log/*.log "$dir"/*.log 2>/dev/null >&2
  fi
  if [ -f "$fabric/fabric.json" ]; then "$weft" down --dir "$fabric" >/dev/null 2>&1; fi
  if [ "${KEEP:-0}" = 1 ]; then echo "Kept: $dir"; else rm -rf "$dir"; fi
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# Waits until a jq expression holds for what `weft ... --json` says; at most two minutes.
await() { # what expression command...
  local what=$1 expression=$2
  shift 2
  for _ in $(seq 1200); do
    w "$@" --json >"$dir/await.json" && [ "$(jq -r "$expression" "$dir/await.json")" = true ] && return
    sleep 0.1
  done
  fail "$what: not after two minutes" "$dir/await.json"
}

# fio writes and verifies for so many seconds, in the background.
fio_begin() { # name seconds
  fio --name="$1" --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --iodepth=16 \
    --offset=1100m --size=512m --io_size=8g --runtime="$2" --verify=crc32c --verify_backlog=1024 \
    --verify_fatal=1 --verify_state_save=0 --output-format=json --output="$dir/$1.json" \
    >"$dir/$1.log" 2>&1 &
  fio_pid=$!
  mark "fio begins to write and verify"
}
fio_end() { # name
  wait "$fio_pid" || { fio_pid=''; fail "fio found wrong data or an I/O error" "$dir/$1.json" "$dir/$1.log"; }
  fio_pid=''
  [ "$(jq '.jobs[0].error' "$dir/$1.json")" = 0 ] || fail "fio reports an error" "$dir/$1.json"
  [ "$(jq '.jobs[0].read.total_ios' "$dir/$1.json")" -gt 0 ] || fail "fio has verified nothing" "$dir/$1.json"
  mark "fio ends: no error"
}
fio_says() { # name
  jq -r '.jobs[0] | "\(.write.iops | round) writes/s, \(.write.io_bytes / 1048576 | round) MiB written, error \(.error)"' \
    "$dir/$1.json"
}
# What drives took beside what clients wrote, as recorded: from one time to another, and the interval after it.
repaired_mib() {
  jq -s --argjson from "$1" --argjson to "$2" '
    def seconds: (.[0:19] + "Z" | fromdateiso8601) + (.[20:23] | tonumber / 1000);
    [.[] | select(.drives) | select((.time | seconds) > $from and (.time | seconds) < $to + 1) |
      .interval_ms / 1000 * ([.drives[] | [(.stored_bytes_per_s // 0) - .written_bytes_per_s, 0] | max] | add // 0)] |
    add // 0 | . / 1048576 | round' "$dir/watch.jsonl"
}
stall_ms() { jq '[.jobs[0].write.clat_ns.max, .jobs[0].read.clat_ns.max] | max / 1e6 | round' "$dir/$1.json"; }

say "A fabric of $nodes nodes with $drives drives each, in $dir"
began=$(now)
"$weft" up --dir "$fabric" --nodes "$nodes" --drives "$drives" --drive-size "${drive_mib}MiB" --port "$port" --detach
up_s=$(seconds "$began" "$(now)")

say "A volume: two copies on different nodes, striped over four groups"
began=$(now)
w volume create demo --size 3GiB --copies 2 --stripe-width 4
create_s=$(seconds "$began" "$(now)")
# Not through a function: its pid must be that of weft, not of a shell around it.
"$weft" --fabric "$fabric" volume serve demo --nbd "unix:$socket" >"$dir/serve.log" 2>&1 &
serve_pid=$!
for _ in $(seq 100); do [ -S "$socket" ] && break; sleep 0.1; done
nbdinfo "$uri" | sed 's/^/  /' | head -n 12

say "An ext4 file system of $image_mib MiB, filled from this machine's files"
mkdir "$dir/files"
room_kib=$((image_mib * 1024 * 6 / 10))
folders=()
for from in /usr/share /usr/bin /usr/sbin /usr/lib /usr/include; do [ -d "$from" ] && folders+=("$from"); done
find "${folders[@]}" -xdev -type f -readable -size -64M ! -name '*[[:cntrl:]]*' -printf '%k %p\n' |
  awk -v left="$room_kib" \
    '{ kib = $1 + 4; sub(/^[0-9]+ /, ""); if (kib <= left && n < 20000) { left -= kib; n++; print } }' >"$dir/list"
tar --verbatim-files-from -T "$dir/list" -cf - 2>/dev/null | tar -C "$dir/files" -xf -
truncate -s "${image_mib}M" "$dir/image"
mke2fs -q -t ext4 -d "$dir/files" "$dir/image"
files=$(find "$dir/files" -type f | wc -l)
rm -rf "$dir/files"
sum=$(sha256sum "$dir/image" | cut -d' ' -f1)
row "files in it" "$files"
row "sha256" "${sum:0:16}..."

say "Copying it in with nbdcopy, while weft watch --record looks on"
"$weft" --fabric "$fabric" watch --interval 500ms --record "$dir/watch.jsonl" >"$dir/watch.log" 2>&1 &
watch_pid=$!
for _ in $(seq 100); do [ -s "$dir/watch.jsonl" ] && break; sleep 0.1; done
mark "nbdcopy writes the image"
began=$(now)
nbdcopy --flush "$dir/image" "$uri"
ended=$(now)
copy_in=$(rate "$image_mib" "$began" "$ended")
row "rate" "$copy_in MiB/s"

say "fio writes and verifies beside it; node-2 is killed with SIGKILL"
fio_begin node 20
sleep 6
mark "node-2 is killed with SIGKILL"
w node stop node-2 --kill
killed=$(now)
sleep 2
w status || true
fio_end node

say "node-2 comes back and is resynced"
mark "node-2 is started again"
w node start node-2
back=$(now)
await "health after the return of node-2" '.health == "healthy"' status
healthy=$(now)
w status
w drive list --json >"$dir/drives.json"
held=$(jq '[.drives[] | select(.node == "node-2") | .usage.used_bytes // 0] | add / 1048576 | round' "$dir/drives.json")
sleep 1 # until that is recorded
copied=$(repaired_mib "$back" "$healthy")

say "fio again; a drive of node-3 is taken away for good: its file is deleted under the running node"
fio_begin drive 16
sleep 4
pulled_file="$fabric/nodes/node-3/drive-1.img"
w drive list --json >"$dir/drives.json"
pulled_id=$(jq -r --arg file "$pulled_file" '.drives[] | select(.path | endswith($file)) | .id' "$dir/drives.json")
[ -n "$pulled_id" ] || fail "no drive of the fabric is $pulled_file" "$dir/drives.json"
mark "drive ${pulled_id:0:8} of node-3 is taken away: its file is deleted"
rm "$pulled_file"
pulled=$(now)
await "node-3 misses its drive" "any(.drives[]; .id == \"$pulled_id\" and .state == \"failed\")" drive list
missed=$(now)
sleep 0.7
w status || true
fio_end drive
await "the copies of the lost drive are rebuilt" '.degraded_groups == []' status
# Not when it was noticed here, which may be after fio's end, but when the last copy was complete.
w events --json >"$dir/events.json"
rebuilt=$(jq '[.events[] | select(.what == "promote")] | last.time |
  (.[0:19] + "Z" | fromdateiso8601) + (.[20:23] | tonumber / 1000)' "$dir/events.json")
rebuilt_mib=$(repaired_mib "$pulled" "$rebuilt")
[ "$rebuilt_mib" -gt 0 ] || fail "nothing was rebuilt" "$dir/events.json"
w drive remove "$pulled_id" --yes
await "health after the drive is forgotten" '.health == "healthy"' status
w status

say "Bit rot: $rotten blocks of the image change on a drive of node-1, behind everybody's back"
rotten_file="$fabric/nodes/node-1/drive-1.img"
w drive locate "$rotten_file" demo --size "${image_mib}MiB" --json >"$dir/located.json"
jq -r --argjson n "$rotten" '[.runs[] | select(.held == "data" and .role == "in-sync")] | length as $all |
  if $all < $n then empty else [range($n) as $i | .[($all * $i / $n | floor)]] | .[] | .drive_byte end' \
  "$dir/located.json" >"$dir/rotten"
[ "$(wc -l <"$dir/rotten")" = "$rotten" ] || fail "too little of the volume is on $rotten_file" "$dir/located.json"
while read -r byte; do
  dd if=/dev/urandom of="$rotten_file" bs=1 count=16 seek=$((byte + 1000)) conv=notrunc,fsync status=none
done <"$dir/rotten"
mark "$rotten blocks rot on a drive of node-1"
damaged() { # how many of the blocks that are located on that drive do not match their checksums
  # It ends with 1, and says so, where data is damaged.
  { w drive locate "$rotten_file" demo --size "${image_mib}MiB" --verify --json 2>"$dir/verify.err" || [ $? = 1 ]; } |
    jq '[.runs[] | select(.is_intact == false) | .length_bytes] | add // 0 | . / 4096'
}
found=$(damaged)
row "blocks that do not match their checksums" "$found (weft drive locate --verify)"
[ "$found" = "$rotten" ] || fail "expected $rotten damaged blocks on $rotten_file, found $found"

say "A scrub reads everything, verifies it, and heals"
began=$(now)
w scrub start demo
await "the scrub ends" '.running == null and .last != null' scrub status
scrub_s=$(seconds "$began" "$(now)")
w scrub status
w scrub status --json >"$dir/scrub.json"
healed=$(jq .last.healed_blocks "$dir/scrub.json")
scrubbed_mib=$(jq '.last.bytes_read / 1048576 | round' "$dir/scrub.json")
[ "$(jq '.last | [.healed_blocks, .lost_blocks, .disagreements] | join(" ")' -r "$dir/scrub.json")" = "$rotten 0 0" ] ||
  fail "expected $rotten blocks healed, none lost and no disagreement" "$dir/scrub.json"
left=$(damaged)
[ "$left" = 0 ] || fail "$left blocks of $rotten_file are damaged after the scrub"

say "Reading the image back"
mark "nbdcopy reads the volume back"
began=$(now)
nbdcopy "$uri" - | head -c "$((image_mib * 1024 * 1024))" >"$dir/back" || true
ended=$(now)
copy_out=$(rate 3072 "$began" "$ended")
back_sum=$(sha256sum "$dir/back" | cut -d' ' -f1)
[ "$sum" = "$back_sum" ] || fail "the image has sha256 $back_sum, expected $sum"
e2fsck -f -n "$dir/back" >"$dir/e2fsck.log" 2>&1 || fail "e2fsck finds the file system damaged" "$dir/e2fsck.log"
mark "the image matches its sha256, and e2fsck finds it clean"
sleep 1 # so that the last mark is in the record

# Files: two mounts are what two machines would have.
unpacked='' compiled=''
# A C program of some files, whose output tells whether all of them were compiled and linked.
make_program() { # folder files
  mkdir "$1"
  for n in $(seq "$2"); do printf 'int part_%d(void) { return %d; }\n' "$n" "$n" >"$1/part_$n.c"; done
  {
    echo '#include <stdio.h>'
    for n in $(seq "$2"); do echo "int part_$n(void);"; done
    printf 'int main(void) { printf("%%d\\n", 0'
    for n in $(seq "$2"); do printf ' + part_%d()' "$n"; done
    echo '); return 0; }'
  } >"$1/main.c"
  printf 'program: main.o %s\n\tcc -o $@ $^\n' "$(for n in $(seq "$2"); do printf 'part_%d.o ' "$n"; done)" >"$1/Makefile"
}
show_files() {
  say "A file system, mounted twice; a source tree is unpacked and compiled through one mount, and node-4 is killed"
  w fs create home
  mkdir "$dir/here" "$dir/there" "$dir/tree"
  for at in "$dir/here" "$dir/there"; do
    w mount home "$at"
    mounted="$mounted $at"
  done
  tar -C "$top" --exclude=corpus -cf - crates docs scripts | tar -C "$dir/tree" -xf -
  make_program "$dir/tree/program" 40
  mark "a source tree is unpacked in a file system"
  began=$(now)
  (cd "$dir/tree" && tar -cf - .) | tar -C "$dir/here" --no-same-owner -xf - &
  unpack_pid=$!
  sleep 2
  mark "node-4 is killed with SIGKILL"
  w node stop node-4 --kill
  wait "$unpack_pid" || fail "the tree is not unpacked"
  unpacked="$(find "$dir/tree" -type f | wc -l) files in $(seconds "$began" "$(now)") s, a node died meanwhile"
  row "unpacked" "$unpacked"
  began=$(now)
  make -s -C "$dir/here/program" -j2
  compiled="40 C files in $(seconds "$began" "$(now)") s"
  row "compiled" "$compiled"
  [ "$("$dir/there/program/program")" = 820 ] || fail "the program that was compiled here says something else there"
  rm -f "$dir"/here/program/*.o "$dir/here/program/program"
  diff -r "$dir/tree" "$dir/there" || fail "the tree that was unpacked here is another one there"
  row "read through the other mount" "the same"
  row "weft fs check" "$(w fs check home)"
  w node start node-4
  for at in $mounted; do w umount "$at"; done
  mounted=''
}
if [ "$(id -u)" = 0 ] && [ -w /dev/fuse ]; then show_files; else
  say "Files are not shown: a mount takes root and /dev/fuse"
fi

kill "$watch_pid"
wait "$watch_pid" || fail "weft watch --record failed" "$dir/watch.log"
watch_pid=''
kill "$serve_pid"
wait "$serve_pid" || true
serve_pid=''
"$weft" down --dir "$fabric"

say "The record as a page"
"$weft" report "$dir/watch.jsonl" --html "$page" --title "Weft demo: a node dies, a drive is lost, bits rot"

say "What happened"
row "fabric up" "$up_s s, $nodes nodes x $drives drives of $drive_mib MiB"
row "volume created" "$create_s s, 3 GiB, 2 copies, striped"
row "image copied in (nbdcopy)" "$copy_in MiB/s"
row "fio while a node died" "$(fio_says node)"
row "longest stall of one request" "$(stall_ms node) ms"
row "node away" "$(seconds "$killed" "$back") s"
row "resync after its return" "$(seconds "$back" "$healthy") s, $copied MiB copied of $held MiB that it holds"
row "fio while a drive was lost" "$(fio_says drive)"
row "longest stall of one request" "$(stall_ms drive) ms"
row "loss noticed after" "$(seconds "$pulled" "$missed") s"
row "rebuilt on the other drives" "$(seconds "$pulled" "$rebuilt") s after the loss, $rebuilt_mib MiB"
row "bit rot" "$rotten blocks damaged, $healed healed, $left left"
row "scrub" "$scrub_s s, $scrubbed_mib MiB read and verified"
row "volume read back (nbdcopy)" "$copy_out MiB/s"
row "image" "sha256 matches, e2fsck: clean"
[ -z "$unpacked" ] || row "source tree unpacked" "$unpacked"
[ -z "$compiled" ] || row "compiled, and run through another mount" "$compiled"
printf '\nCharts of throughput and latency through all of it: %s\n' "$page"
