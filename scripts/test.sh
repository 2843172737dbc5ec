#!/bin/sh
# What `make test` does: set-up, format, lints, then every test of the workspace.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
scripts/setup.sh --for test
cargo() { scripts/with-cargo.sh "$@"; }
echo "== Format"
cargo fmt --all --check
echo "== Lints (warnings denied)"
cargo clippy --workspace --all-targets --locked -- -D warnings
echo "== Tests"
# This builds the binary as well, which the end-to-end tests run.
cargo test --workspace --locked --no-fail-fast
echo "== Documentation (warnings denied)"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
