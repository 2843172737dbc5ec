#!/bin/sh
# What `make bench-deaths` does: set-up, release build, then how long clients wait when a node dies.
# WEFT=/usr/bin/weft measures one that is there already, and builds none.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
scripts/setup.sh --for bench
if [ -z "${WEFT:-}" ]; then
  scripts/build.sh
fi
exec python3 -B bench/where/deaths.py "${WEFT:-${CARGO_TARGET_DIR:-$top/target}/release/weft}" --json deaths.json "$@"
