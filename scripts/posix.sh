#!/bin/sh
# What `make posix` does: set-up, release build, then suites and real programs on a mounted file system.
# WEFT=/usr/bin/weft tests one that is there already, and builds none. TOOLS names a folder with pjdfstest and fsx.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
scripts/setup.sh --for posix
target=${CARGO_TARGET_DIR:-$top/target}
if [ -z "${WEFT:-}" ]; then
  scripts/build.sh
fi
tools=${TOOLS:-$target/tools/bin}
# Two suites are crates: each is built once, in its own version.
for tool in pjdfstest@0.2.1 fsx@0.3.2; do
  [ -x "$tools/${tool%@*}" ] || scripts/with-cargo.sh install --quiet --locked --root "${tools%/bin}" "$tool"
done
exec python3 -B suites/run.py "${WEFT:-$target/release/weft}" --tools "$tools" "$@"
