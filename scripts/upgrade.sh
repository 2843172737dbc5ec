#!/usr/bin/env bash
# What `make upgrade` does: a fabric of the release before becomes one of this release under a checked load, in both orders: its
# manager first, and its nodes first. If the release before has mounts, one of its mounts goes on all the time beside one of this
# release. Then the nodes get threads, and the release before has to refuse what it would misread.
#
# usage: scripts/upgrade.sh OLD-BINARY
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
old=${1:?usage: scripts/upgrade.sh OLD-BINARY: the weft of the release before}
[ -x "$old" ] || { echo "error: '$old' is no program" >&2; exit 2; }
old=$(realpath "$old")
scripts/setup.sh --for torture
scripts/build.sh
new=${CARGO_TARGET_DIR:-$top/target}/release/weft

port=5900
export WEFT_FABRIC=127.0.0.1:$port
fabric=0f6c3a52-7c5e-4f6b-9d0e-1a2b3c4d5e6f
work=$(mktemp -d "${TMPDIR:-/tmp}/weft-upgrade.XXXXXX")
declare -A pids

clean() {
  umount --lazy "$work/old" "$work/new" 2> /dev/null || true
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2> /dev/null || true; done
  rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
  echo "error: $1" >&2
  tail -n 5 "$work"/*.log >&2 || true
  exit 1
}

manager() { # PROGRAM [OPTION...]
  "$1" manager run --store "$work/map.redb" --listen "$WEFT_FABRIC" "${@:2}" >> "$work/manager.log" 2>&1 &
  pids[manager]=$!
}

node() { # NUMBER PROGRAM [OPTION...]
  "$2" node run --name "node-$1" --manager "$WEFT_FABRIC" --listen "127.0.0.1:$((port + 10 * $1))" \
    --drive "$work/drive-$1-1.img" --drive "$work/drive-$1-2.img" "${@:3}" >> "$work/node-$1.log" 2>&1 &
  pids[node-$1]=$!
}

serve() { # PROGRAM
  "$1" volume serve data --nbd "unix:$work/nbd.sock" >> "$work/serve.log" 2>&1 &
  pids[serve]=$!
  for _ in $(seq 100); do [ -S "$work/nbd.sock" ] && return; sleep 0.1; done
  fail "the volume is not served"
}

stop() { # NAME
  kill -TERM "${pids[$1]}"
  wait "${pids[$1]}" || fail "$1 has ended with status $?"
  unset "pids[$1]"
}

# Waits until all nodes are up, and every copy is in-sync.
healthy() {
  for _ in $(seq 600); do
    [ "$("$new" status --json 2> /dev/null | jq -r .health)" = healthy ] && return
    sleep 0.1
  done
  fail "the fabric does not become healthy: $("$new" status 2>&1 | head -n 3)"
}

load() { # NAME OPTION...
  fio --name="$1" --ioengine=nbd "--uri=nbd+unix:///data?socket=$work/nbd.sock" --bs=4k --verify=crc32c \
    --aux-path="$work" --output="$work/fio-$1.log" "${@:2}" || fail "fio '$1' failed: $(grep -m 1 -i 'verify\|err=' "$work/fio-$1.log")"
}

# Whether the release before knows an option of a command.
old_knows() { # COMMAND... OPTION
  local help
  help=$("$old" "${@:1:$#-1}" --help 2> /dev/null) && grep -q -- "${!#}" <<< "$help"
}

has_files=no
if old_knows mount --timeout && [ -c /dev/fuse ] && [ "$(id -u)" = 0 ]; then has_files=yes; fi

mount_home() { # PROGRAM FOLDER
  mkdir -p "$2"
  "$1" mount home "$2" --foreground --timeout 60s >> "$work/mount.log" 2>&1 &
  pids[mount-${2##*/}]=$!
  for _ in $(seq 300); do mountpoint -q "$2" && return; sleep 0.1; done
  fail "the file system is not mounted"
}

unmount() { # PROGRAM FOLDER
  "$1" umount "$2" && wait "${pids[mount-${2##*/}]}" || fail "the mount $2 does not end"
  unset "pids[mount-${2##*/}]"
}

# Files are made, written over and removed, until $work/enough is there; what they are to hold is noted beside.
change_files() { # FOLDER
  local n=0 name
  mkdir -p "$1" "$work/noted/${1##*/}"
  while [ ! -e "$work/enough" ]; do
    n=$((n + 1)) name=file-$((n * 7 % 100))
    head -c $((n * 977 % 70000)) /dev/urandom > "$work/noted/${1##*/}/$name"
    case $((n % 3)) in
      0) cat "$work/noted/${1##*/}/$name" > "$1/$name" ;;
      1) cp "$work/noted/${1##*/}/$name" "$1/made" && mv "$1/made" "$1/$name" ;;
      2) rm -f "$1/$name" && rm "$work/noted/${1##*/}/$name" ;;
    esac || return 1
    sleep 0.02
  done
  echo "   $n changes of files by a mount of the ${1##*/} release"
}

# Each mount has what both were to write.
compare_files() {
  local mount
  for mount in "$@"; do
    diff -r "$work/noted/old" "$mount/old" && diff -r "$work/noted/new" "$mount/new" || fail "files differ in $mount"
  done
}

kept=(--rw=randwrite --size=160M --io_size=40M --iodepth=8 --randseed=7)

# Each node in turn goes on with a thread for each of its drives, under a load that is checked.
more_threads() {
  load threads --rw=randrw --size=40M --offset=200M --iodepth=4 --time_based --runtime=30 --verify_backlog=64 &
  local load=$! n
  for n in 1 2 3; do
    stop "node-$n"
    node "$n" "$new" --threads 2
    sleep 3
    healthy
  done
  wait "$load" || fail "the load beside more threads failed"
  [ "$("$new" node list --json | jq '[.nodes[].targets | length] | add')" = 6 ] || fail "not every node has two threads"
  echo "   each node has two threads: healthy"
}

# What the release before would misread, it refuses in words.
must_refuse() { # ARGUMENT...
  local said
  if said=$(timeout 10 "$old" "$@" 2>&1); then fail "the old release takes what is of the new one: $*"; fi
  grep -q '^error: ' <<< "$said" || fail "the old release does not say why it refuses: $*: $said"
  echo "   the old release says: $(grep -m 1 '^error' <<< "$said" | cut -c 1-160)"
}

upgrade() { # ORDER...
  echo "== $* upgraded in this order, under a load that is checked"
  rm -rf "${work:?}"/*
  for n in {1..3}-{1,2}; do
    "$old" drive format "$work/drive-$n.img" --size 512MiB --fabric-id "$fabric" > /dev/null
  done
  # The first release has no command for it: its manager makes the store.
  if "$old" fabric init --help > /dev/null 2>&1; then
    "$old" fabric init "$work/map.redb" --fabric-id "$fabric" > /dev/null
    manager "$old"
  else
    manager "$old" --fabric-id "$fabric"
  fi
  for n in 1 2 3; do node "$n" "$old"; done
  for _ in $(seq 100); do
    [ "$("$old" status --json 2> /dev/null | jq '[.nodes[] | select(.state == "up")] | length')" = 3 ] && break
    sleep 0.1
  done
  "$old" volume create data --size 256MiB --copies 2 > /dev/null
  serve "$old"
  if [ $has_files = yes ]; then
    "$old" fs create home --copies 2 > /dev/null
    mount_home "$old" "$work/old"
    mount_home "$new" "$work/new"
    change_files "$work/old/old" &
    pids[files-old]=$!
    change_files "$work/new/new" &
    pids[files-new]=$!
  fi
  load kept "${kept[@]}" --do_verify=0
  load beside --rw=randrw --size=40M --offset=200M --iodepth=4 --time_based --runtime=60 --verify_backlog=64 &
  local beside=$!
  sleep 2
  local what
  for what in "$@"; do
    stop "$what"
    case $what in
      manager) manager "$new" ;;
      node-*) node "${what#node-}" "$new" ;;
    esac
    sleep 3
    healthy
    echo "   $what is of the new release: healthy"
  done
  wait "$beside" || fail "the load beside failed"
  touch "$work/enough"
  if [ $has_files = yes ]; then
    for what in files-old files-new; do
      wait "${pids[$what]}" || fail "a file could not be changed"
      unset "pids[$what]"
    done
    compare_files "$work/old" "$work/new"
    unmount "$old" "$work/old"
    unmount "$new" "$work/new"
    mount_home "$new" "$work/new"
    compare_files "$work/new"
    "$new" fs check home || fail "the file system is not sound"
  fi
  load kept "${kept[@]}" --verify_only
  stop serve
  serve "$new"
  load kept "${kept[@]}" --verify_only
  more_threads
  load kept "${kept[@]}" --verify_only
  "$new" fabric check | tail -n 1
  if [ $has_files = yes ]; then
    compare_files "$work/new"
    "$new" fs check home || fail "the file system is not sound"
    unmount "$new" "$work/new"
  fi
  stop serve
  stop manager
  for n in 1 2 3; do stop "node-$n"; done
  if old_knows drive format --parts; then return; fi
  must_refuse manager run --store "$work/map.redb" --listen "$WEFT_FABRIC"
  "$new" drive format "$work/parts.img" --size 256MiB --sparse --fabric-id "$fabric" --parts 2 --force > /dev/null
  must_refuse drive inspect "$work/parts.img"
  must_refuse drive format "$work/parts.img" --fabric-id "$fabric"
  "$new" drive check "$work/parts.img" > /dev/null || fail "what the old release has refused is not what it was"
}

[ $has_files = yes ] || echo "The release before has no mounts, or there is no /dev/fuse for root: volumes only."
upgrade manager node-1 node-2 node-3
upgrade node-1 node-2 node-3 manager
echo "Both are done: nothing was lost, and the old client went on all the time."
