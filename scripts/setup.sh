#!/bin/sh
# Installs what building, testing or the demo needs and this machine lacks: Debian packages by name, and a Rust
# toolchain by rustup. Says so before it does it, does nothing where nothing is missing, and can be run again.
# No service of a package is started.
#
# usage: scripts/setup.sh --for build|test|demo|bench
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
purpose=build
while [ $# -gt 0 ]; do
  case $1 in
    --for) purpose=${2:?"--for needs one of build, test, demo, bench"}; shift 2 ;;
    *) echo "usage: scripts/setup.sh --for build|test|demo|bench" >&2; exit 2 ;;
  esac
done

missing=''
need() { # program package
  command -v "$1" >/dev/null 2>&1 || [ -x "/sbin/$1" ] || [ -x "/usr/sbin/$1" ] ||
    case " $missing " in *" $2 "*) ;; *) missing="$missing $2" ;; esac
}
need cc gcc
need curl curl
[ -f /etc/ssl/certs/ca-certificates.crt ] || missing="$missing ca-certificates"
printf '#include <stdio.h>\n' | cc -E -x c - >/dev/null 2>&1 ||
  case " $missing " in *" libc6-dev "*) ;; *) missing="$missing libc6-dev" ;; esac
case $purpose in
  build) ;;
  test | demo)
    need fio fio
    need qemu-img qemu-utils
    need nbdinfo libnbd-bin
    need mke2fs e2fsprogs
    need jq jq
    ;;
  bench) need jq jq ;;
  *) echo "error: unknown purpose '$purpose': expected build, test, demo or bench" >&2; exit 2 ;;
esac

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null 2>&1; then sudo "$@"; else
    echo "error: installing packages needs root: found neither root nor sudo" >&2
    echo "hint: as root, run: apt-get install -y --no-install-recommends$missing" >&2
    exit 1
  fi
}

if [ -n "$missing" ]; then
  command -v apt-get >/dev/null 2>&1 || {
    echo "error: missing:$missing; this machine has no apt-get to install them with" >&2
    echo "hint: install their equivalents with your package manager, then run this again" >&2
    exit 1
  }
  echo "== Installing Debian packages:$missing"
  # A policy that denies starting services, for as long as the installation runs.
  policy=/usr/sbin/policy-rc.d
  placed=no
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
    placed=yes
  fi
  status=0
  # shellcheck disable=SC2086  # a list of names
  { as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends $missing >/dev/null; } || status=$?
  [ "$placed" = yes ] && as_root rm -f "$policy"
  [ "$status" = 0 ] || { echo "error: apt-get failed with status $status" >&2; exit 1; }
fi

command -v cargo >/dev/null 2>&1 || PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$top/Cargo.toml")
recent_enough() {
  command -v cargo >/dev/null 2>&1 || return 1
  found=$(rustc --version 2>/dev/null | cut -d' ' -f2 | cut -d- -f1)
  [ -n "$found" ] && [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ]
}
components() { cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1; }
if ! recent_enough; then
  echo "== Installing a Rust toolchain (stable, at least $wanted) with rustup, for this user"
  if command -v rustup >/dev/null 2>&1; then
    rustup toolchain install stable --profile minimal --component rustfmt --component clippy
    rustup default stable
  else
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
      sh -s -- -y --no-modify-path --profile minimal --component rustfmt --component clippy
  fi
  recent_enough || { echo "error: no Rust of at least $wanted after the installation" >&2; exit 1; }
fi
if [ "$purpose" = test ] && ! components; then
  echo "== Installing rustfmt and clippy with rustup"
  rustup component add rustfmt clippy
fi
