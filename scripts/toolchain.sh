# shellcheck shell=sh
# Finds a Rust toolchain that is recent enough. Sourced, with $top set; it never installs anything and never
# changes a default of the user's: what it chooses holds for the calling script and its children.

if [ -z "${HOME:-}" ]; then
  HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
  export HOME
fi
cargo_bin="${CARGO_HOME:-$HOME/.cargo}/bin"
rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "${top:?}/Cargo.toml")

# Whether the rustc and cargo that PATH leads to are recent enough. A rustup proxy must not download anything here:
# installing is for setup.sh, which says so first.
rust_is_recent() {
  rust_found=''
  command -v cargo >/dev/null 2>&1 || return 1
  rust_found=$(RUSTUP_AUTO_INSTALL=0 rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p')
  [ -n "$rust_found" ] || return 1
  [ "$(printf '%s\n%s\n' "$rust_wanted" "$rust_found" | sort -V | head -n 1)" = "$rust_wanted" ]
}

# Rustup's folder first: the shell may not know it yet, and an older rustc of the distribution may hide it. Then whatever
# the shell finds; then rustup's stable toolchain where the default is an older one.
choose_rust() {
  path_before=$PATH
  if [ -x "$cargo_bin/cargo" ]; then
    PATH="$cargo_bin:$path_before"
    export PATH
    rust_is_recent && return 0
    PATH=$path_before
  fi
  rust_is_recent && return 0
  PATH="$cargo_bin:$path_before"
  export PATH
  command -v rustup >/dev/null 2>&1 || return 1
  RUSTUP_TOOLCHAIN=stable
  export RUSTUP_TOOLCHAIN
  rust_is_recent
}
