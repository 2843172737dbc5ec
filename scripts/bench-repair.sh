#!/bin/sh
# What `make bench-repair` does: set-up, release build, then what repair costs a client and how fast it is.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
scripts/setup.sh --for bench
scripts/build.sh
exec "${CARGO_TARGET_DIR:-$top/target}/release/weft" bench repair --out repair.json --html repair.html "$@"
