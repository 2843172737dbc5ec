#!/bin/sh
# Builds the release binary, target/release/weft, and puts its line tables into a file of their own beside it, weft.debug,
# where debuggers, profilers and the program's own backtraces find them.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
release=${CARGO_TARGET_DIR:-$top/target}/release
# Without its tables the program is made again, from what cargo keeps in deps.
[ -f "$release/weft.debug" ] || rm -f "$release/weft"
scripts/with-cargo.sh build --release --locked -p weft
# Cargo puts the whole program back each time that it is asked, also where nothing was to be built.
if ! objdump -h "$release/weft" | grep -q gnu_debuglink; then
  objcopy --only-keep-debug "$release/weft" "$release/weft.debug.new"
  mv "$release/weft.debug.new" "$release/weft.debug"
  (cd "$release" && objcopy --strip-debug --add-gnu-debuglink=weft.debug weft weft.new)
  mv "$release/weft.new" "$release/weft"
fi
