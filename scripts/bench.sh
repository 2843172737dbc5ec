#!/bin/sh
# What `make bench` does: set-up, release build, then the data path beside the machine's own limit.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
scripts/setup.sh --for bench
scripts/build.sh
exec "${CARGO_TARGET_DIR:-$top/target}/release/weft" bench figures --pin --out bench.json "$@"
