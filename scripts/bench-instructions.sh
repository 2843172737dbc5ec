#!/bin/sh
# What `make bench-instructions` does: set-up, release build, then how many instructions a request takes, by layer.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
scripts/setup.sh --for where
scripts/with-cargo.sh build --release --locked -p weft --bin weft --example one_thread
built=${CARGO_TARGET_DIR:-$top/target}/release
exec python3 -B bench/where/count.py "$built/weft" "$built/examples/one_thread" --json instructions.json "$@"
