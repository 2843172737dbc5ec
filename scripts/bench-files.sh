#!/bin/sh
# What `make bench-files` does: set-up, release build, then what a file system reaches beside its limits.
# WEFT=/usr/bin/weft measures one that is there already; the file system in memory beside it is built in any case.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
scripts/setup.sh --for bench --with fio
if [ -z "${WEFT:-}" ]; then
  scripts/build.sh
fi
target=${CARGO_TARGET_DIR:-$top/target}
scripts/with-cargo.sh build --release --locked -p weft-fuse --example memory
exec python3 -B bench/files/run.py "${WEFT:-$target/release/weft}" "$target/release/examples/memory" --json files.json "$@"
