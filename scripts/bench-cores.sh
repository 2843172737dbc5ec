#!/bin/sh
# What `make bench-cores` does: set-up, release build, then what threads of a node, parts of a device and lanes of a client
# cost and are worth. WEFT=/usr/bin/weft measures one that is there already, and builds none.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
scripts/setup.sh --for bench
if [ -z "${WEFT:-}" ]; then
  scripts/build.sh
fi
exec python3 -B bench/where/cores.py "${WEFT:-${CARGO_TARGET_DIR:-$top/target}/release/weft}" --json cores.json "$@"
