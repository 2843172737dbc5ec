#!/bin/sh
# What `make bench-peers` does: set-up, release build, then Weft beside the other storage systems that are installed.
# WEFT=/usr/bin/weft measures one that is there already, and builds none.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
if [ -z "${WEFT:-}" ]; then
  scripts/setup.sh --for bench
  scripts/build.sh
fi
WEFT="${WEFT:-${CARGO_TARGET_DIR:-$top/target}/release/weft}"
export WEFT
command -v python3 >/dev/null 2>&1 || {
  echo "error: python3 is not installed" >&2
  echo "hint: scripts/setup.sh --for peers" >&2
  exit 1
}
exec python3 bench/peers/run.py --json peers.json "$@"
