#!/usr/bin/env bash
# The main job, watched: real data on a mirrored volume lives through the death of a node.
# Everything happens in a folder of its own, on loopback, and is removed at the end (KEEP=1 keeps it).
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
scripts/setup.sh --for demo
PATH="$PATH:/usr/sbin:/sbin" # mke2fs and e2fsck, which are not on everybody's PATH
echo "== Building weft (release)"
scripts/with-cargo.sh build --release --locked -p weft
weft="${CARGO_TARGET_DIR:-$top/target}/release/weft"

nodes=4 drives=2 drive_mib=1536 image_mib=1024
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

fabric="$dir/fabric" socket="$dir/nbd.sock" serve_pid='' fio_pid=''
uri="nbd+unix:///demo?socket=$socket"
w() { "$weft" --fabric "$fabric" "$@"; }
now() { date +%s.%N; }
seconds() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", b - a }'; }
rate() { awk -v mib="$1" -v a="$2" -v b="$3" 'BEGIN { printf "%.0f", mib / (b - a) }'; }
say() { printf '\n== %s\n' "$*"; }
row() { printf '  %-46s %s\n' "$1" "$2"; }

clean_up() {
  status=$?
  set +e
  [ -n "$fio_pid" ] && kill "$fio_pid" 2>/dev/null
  [ -n "$serve_pid" ] && kill "$serve_pid" 2>/dev/null && wait "$serve_pid" 2>/dev/null
  if [ -f "$fabric/fabric.json" ]; then "$weft" down --dir "$fabric" >/dev/null 2>&1; fi
  if [ "$status" -ne 0 ]; then
    echo "The demo failed. Logs of the fabric:" >&2
    tail -n 5 "$fabric"/log/*.log "$dir"/*.log 2>/dev/null >&2
  fi
  if [ "${KEEP:-0}" = 1 ]; then echo "Kept: $dir"; else rm -rf "$dir"; fi
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

say "A fabric of $nodes nodes with $drives drives each, in $dir"
began=$(now)
"$weft" up --dir "$fabric" --nodes "$nodes" --drives "$drives" --drive-size "${drive_mib}MiB" --detach
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

say "Copying it in with nbdcopy"
began=$(now)
nbdcopy --flush "$dir/image" "$uri"
ended=$(now)
copy_in=$(rate "$image_mib" "$began" "$ended")
row "rate" "$copy_in MiB/s"

say "fio writes and verifies beside it; node-2 is killed with SIGKILL"
fio --name=demo --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --iodepth=16 \
  --offset=1100m --size=512m --io_size=8g --runtime=20 --verify=crc32c --verify_backlog=4096 \
  --verify_fatal=1 --verify_state_save=0 --output-format=json --output="$dir/fio.json" \
  >"$dir/fio.log" 2>&1 &
fio_pid=$!
sleep 6
w node stop node-2 --kill
killed=$(now)
sleep 2
w status || true
wait "$fio_pid" || { echo "error: fio found wrong data or an I/O error" >&2; cat "$dir/fio.json" "$dir/fio.log" >&2; exit 1; }
fio_pid=''
stall_ms=$(jq '[.jobs[0].write.clat_ns.max, .jobs[0].read.clat_ns.max] | max / 1e6 | round' "$dir/fio.json")
fio_written=$(jq '.jobs[0].write.io_bytes / 1048576 | round' "$dir/fio.json")
fio_iops=$(jq '.jobs[0].write.iops | round' "$dir/fio.json")
fio_errors=$(jq '.jobs[0].error' "$dir/fio.json")

say "node-2 comes back and is resynced"
w node start node-2
back=$(now)
for _ in $(seq 1200); do
  w status --json >"$dir/status.json"
  [ "$(jq -r .health "$dir/status.json")" = healthy ] && break
  sleep 0.1
done
healthy=$(now)
w status
[ "$(jq -r .health "$dir/status.json")" = healthy ] || { echo "error: not healthy after two minutes" >&2; exit 1; }
copied=$(jq '[.resyncs[]?.bytes_copied // 0] | add // 0 | . / 1048576 | round' "$dir/status.json")
held=$(jq '[.resyncs[]?.bytes_held // 0] | add // 0 | . / 1048576 | round' "$dir/status.json")

say "Reading the image back"
began=$(now)
nbdcopy "$uri" - | head -c "$((image_mib * 1024 * 1024))" >"$dir/back" || true
ended=$(now)
copy_out=$(rate 3072 "$began" "$ended")
back_sum=$(sha256sum "$dir/back" | cut -d' ' -f1)
[ "$sum" = "$back_sum" ] || { echo "error: the image has sha256 $back_sum, expected $sum" >&2; exit 1; }
e2fsck -f -n "$dir/back" >"$dir/e2fsck.log" 2>&1 || { cat "$dir/e2fsck.log" >&2; exit 1; }

kill "$serve_pid"
wait "$serve_pid" || true
serve_pid=''
"$weft" down --dir "$fabric"

say "What happened"
row "fabric up" "$up_s s, $nodes nodes x $drives drives of $drive_mib MiB"
row "volume created" "$create_s s, 3 GiB, 2 copies, striped"
row "image copied in (nbdcopy)" "$copy_in MiB/s"
row "fio while a node died" "$fio_iops writes/s of 4 KiB, $fio_written MiB written, error $fio_errors"
row "longest stall of one request" "$stall_ms ms"
row "node away" "$(seconds "$killed" "$back") s"
row "resync after its return" "$(seconds "$back" "$healthy") s, $copied MiB copied of $held MiB held"
row "volume read back (nbdcopy)" "$copy_out MiB/s"
row "image" "sha256 matches, e2fsck: clean"
