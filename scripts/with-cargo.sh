#!/bin/sh
# Runs cargo, also where rustup has just been installed and the shell's PATH does not know it yet.
set -eu
command -v cargo >/dev/null 2>&1 || PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
exec cargo "$@"
