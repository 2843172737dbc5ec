#!/bin/sh
# What `make test` does: set-up, format, lints, every test of the workspace, and the short forms of `make posix`.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
scripts/setup.sh --for test
# Everything is built once here: what the compiler keeps for the next change would be gigabytes that nobody reads.
export CARGO_INCREMENTAL=0
cargo() { scripts/with-cargo.sh "$@"; }
echo "== Format"
cargo fmt --all --check
echo "== Lints (warnings denied)"
cargo clippy --workspace --all-targets --locked -- -D warnings
echo "== The program under test (release)"
# By itself: beside the simulation and the fuzzers it would be built with their switches and doors.
scripts/build.sh
WEFT_UNDER_TEST=${CARGO_TARGET_DIR:-$top/target}/release/weft
export WEFT_UNDER_TEST
echo "== Tests"
cargo test --workspace --locked --no-fail-fast
echo "== Programs on a mounted file system (short forms)"
if [ "$(id -u)" = 0 ] && [ -c /dev/fuse ]; then
  WEFT=$WEFT_UNDER_TEST scripts/posix.sh --short
else
  echo "skipped: mounting needs root and /dev/fuse"
fi
echo "== Documentation (warnings denied)"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
