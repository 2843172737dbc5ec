#!/bin/sh
# Runs cargo of a toolchain that is recent enough, also where rustup has just been installed and the shell's PATH
# does not know it yet.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/toolchain.sh
. "$top/scripts/toolchain.sh"
if ! choose_rust; then
  echo "error: Rust of at least $rust_wanted is needed, found ${rust_found:-none}" >&2
  echo "hint: scripts/setup.sh --for build" >&2
  exit 1
fi
exec cargo "$@"
