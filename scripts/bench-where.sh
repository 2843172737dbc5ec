#!/bin/sh
# What `make bench-where` does: set-up, release build, then where the processor time of requests goes, by layer.
# WEFT=/usr/bin/weft profiles one that is there already, and builds none.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
scripts/setup.sh --for where
if [ -z "${WEFT:-}" ]; then
  scripts/build.sh
fi
exec python3 -B bench/where/run.py "${WEFT:-${CARGO_TARGET_DIR:-$top/target}/release/weft}" --json where.json "$@"
