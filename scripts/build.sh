#!/bin/sh
# Builds the release binary, target/release/weft, and puts its line tables into a file of their own beside it, weft.debug,
# where debuggers, profilers and the program's own backtraces find them.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
scripts/with-cargo.sh build --release --locked -p weft
release=${CARGO_TARGET_DIR:-$top/target}/release
# What cargo has built stays as it is in deps; the file beside it is a copy of our own once this has run.
if [ ! -f "$release/weft.debug" ] || [ "$release/weft" -nt "$release/weft.debug" ]; then
  objcopy --only-keep-debug "$release/weft" "$release/weft.debug.new"
  objcopy --strip-debug "$release/weft" "$release/weft.new"
  mv "$release/weft.debug.new" "$release/weft.debug"
  (cd "$release" && objcopy --add-gnu-debuglink=weft.debug weft.new)
  mv "$release/weft.new" "$release/weft"
  touch "$release/weft.debug"
fi
