#!/bin/sh
# What `make torture` does: set-up, release builds, then a fabric of real processes under faults for so many minutes.
#
# usage: scripts/torture.sh [MINUTES] [option of weft-torture...]
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
minutes=${1:-5}
[ $# -eq 0 ] || shift
scripts/setup.sh --for torture
scripts/build.sh
# By itself: what the tortured program is built with must not depend on what tortures it.
scripts/with-cargo.sh build --release --locked -p weft-torture
exec "${CARGO_TARGET_DIR:-$top/target}/release/weft-torture" --minutes "$minutes" "$@"
