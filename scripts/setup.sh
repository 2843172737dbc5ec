#!/bin/sh
# Installs what building, testing or the demo needs and this machine lacks: Debian packages by name, and a Rust
# toolchain by rustup. Says what it will do before it does it, does nothing where nothing is missing, and can be run
# again. It starts no service, and changes no default toolchain.
# For `peers` it installs all systems of bench/peers, some 300 MB, or with --with (several times if need be) those packages.
#
# usage: scripts/setup.sh [--for build|test|torture|fuzz|demo|bench|where|peers|posix] [--with PACKAGE] [--dry-run]
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/toolchain.sh
. "$top/scripts/toolchain.sh"

fail() { # message hint
  echo "error: $1" >&2
  echo "hint: $2" >&2
  exit 1
}

# The packages of bench/peers. Its own test compares this list with what the peers say.
peer_packages='ceph-common ceph-fuse ceph-mds ceph-mgr ceph-mon ceph-osd glusterfs-client glusterfs-server moosefs-chunkserver
  moosefs-client moosefs-master nbdkit nfs-ganesha nfs-ganesha-vfs qemu-block-extra qemu-utils rpcbind'

purpose=build dry_run=no with=''
while [ $# -gt 0 ]; do
  case $1 in
    --for) purpose=${2:-}; shift; [ $# -eq 0 ] || shift ;;
    --with) with="$with ${2:-}"; shift; [ $# -eq 0 ] || shift ;;
    --dry-run) dry_run=yes; shift ;;
    *)
      echo "usage: scripts/setup.sh [--for build|test|torture|fuzz|demo|bench|where|peers|posix] [--with PACKAGE] [--dry-run]" >&2
      exit 2
      ;;
  esac
done

# What is missing, as names of Debian packages.
packages=''
want() { case " $packages " in *" $1 "*) ;; *) packages="$packages $1" ;; esac; }
need() { # program package
  # Programs for administrators are not on everybody's PATH.
  command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || want "$2"
}

need cc gcc
# Without its recommended packages the compiler comes without the C library's headers and start files.
printf '#include <stdio.h>\nint main(void) { return 0; }\n' | cc -x c -o /dev/null - 2>/dev/null || want libc6-dev
need curl curl
[ -f /etc/ssl/certs/ca-certificates.crt ] || want ca-certificates
case $purpose in
  build | bench) ;;
  where)
    need python3 python3; need valgrind valgrind
    # Ubuntu has a perf for each of its kernels, and a package for the newest one.
    if grep -qx 'ID=ubuntu' /etc/os-release 2>/dev/null; then need perf linux-tools-generic; else need perf linux-perf; fi
    ;;
  # libFuzzer is C++.
  fuzz) need c++ g++ ;;
  test)
    need fio fio; need qemu-img qemu-utils; need nbdcopy libnbd-bin; need nbdsh python3-libnbd
    need mke2fs e2fsprogs; need jq jq
    need prometheus prometheus; need promtool prometheus; need ip iproute2; need nft nftables; need python3 python3
    need ssh openssh-client; need sshd openssh-server; need fusermount3 fuse3
    ;;
  torture) need fio fio; need ip iproute2; need nft nftables; need jq jq ;;
  demo) need fio fio; need nbdcopy libnbd-bin; need mke2fs e2fsprogs; need jq jq ;;
  posix)
    need python3 python3; need setpriv util-linux; need unshare util-linux; need mount mount; need ip iproute2
    with="$with acl attr binutils-source bonnie++ dbench fio git libnfs-utils make nfs-ganesha nfs-ganesha-vfs openmpi-bin postgresql
      libnetcdf-mpi-19 python3-h5py-mpi python3-mpi4py rpcbind rsync samba samba-testsuite samba-vfs-modules smbclient
      stress-ng xz-utils"
    ;;
  peers)
    need python3 python3; need fio fio; need ip iproute2; need unshare util-linux; need mount mount
    with=${with:-$peer_packages}
    ;;
  *) echo "error: unknown purpose '$purpose': expected build, test, torture, fuzz, demo, bench, where, peers or posix" >&2; exit 2 ;;
esac
for package in $with; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || want "$package"
done

# The Rust toolchain: nothing, its components, or all of it by rustup.
rust=present
choose_rust || rust=missing
if [ "$rust" = present ] && [ "$purpose" = test ]; then
  { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 || rust=incomplete
fi

if [ -z "$packages" ] && [ "$rust" = present ]; then exit 0; fi
echo "== Missing on this machine, and installed now:"
[ -z "$packages" ] || echo "   Debian packages, with apt-get:$packages"
case $rust in
  missing) echo "   Rust (stable; at least $rust_wanted), with rustup, for this user only" ;;
  incomplete) echo "   rustfmt and clippy, with rustup" ;;
esac
[ "$dry_run" = no ] || exit 0

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# While packages are installed, a policy denies starting services. It must not stay: it is removed on the way out too.
policy=/usr/sbin/policy-rc.d
policy_is_ours=no
remove_policy() {
  [ "$policy_is_ours" = no ] || as_root rm -f "$policy"
  policy_is_ours=no
}
trap remove_policy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

install_packages() {
  by_hand="apt-get install -y --no-install-recommends$packages"
  command -v apt-get >/dev/null 2>&1 ||
    fail "this machine has no apt-get to install$packages with" "install their equivalents, then run this again"
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || fail "installing packages needs root, or sudo" "as root, run: $by_hand"
    # A password can only be asked for where somebody can type it.
    sudo -n true 2>/dev/null || [ -t 0 ] || fail "sudo asks for a password, and nobody is there to type it" "run: sudo $by_hand"
  fi
  if [ ! -e "$policy" ]; then
    policy_is_ours=yes
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
  fi
  # A list that cannot be refreshed (an abandoned third-party source, say) need not stop the installation.
  as_root apt-get update -qq </dev/null || echo "warning: apt-get update failed; going on with the lists that are there" >&2
  # Two minutes: as long as another installation on a freshly booted machine may reasonably hold the lock.
  # shellcheck disable=SC2086  # a list of names
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 \
    install -y -qq --no-install-recommends $packages </dev/null >/dev/null ||
    fail "apt-get could not install$packages" "run it by hand to see why: $by_hand"
  remove_policy
  # The package fio brings a server for remote control, and prometheus and the peers theirs. No release should start them
  # at the next boot because of us.
  for package in $packages; do
    case $package in
      fio | prometheus | nfs-ganesha | moosefs-master | moosefs-chunkserver) services=$package.service ;;
      openssh-server) services='ssh.service ssh.socket' ;;
      glusterfs-server) services='glusterd.service' ;;
      postgresql) services=postgresql.service ;;
      samba) services='smbd.service nmbd.service samba-ad-dc.service' ;;
      rpcbind) services='rpcbind.service rpcbind.socket' ;;
      ceph-mon | ceph-mgr | ceph-osd | ceph-mds | ceph-fuse) services="$package.target" ;;
      *) continue ;;
    esac
    if command -v systemctl >/dev/null 2>&1; then
      # shellcheck disable=SC2086  # a list of names
      as_root systemctl disable --quiet $services 2>/dev/null || true
    fi
  done
}

install_rust() {
  if command -v rustup >/dev/null 2>&1; then
    rustup toolchain install stable --profile minimal --component rustfmt --component clippy
  else
    installer=$(mktemp)
    curl --proto '=https' --tlsv1.2 -sSf -o "$installer" https://sh.rustup.rs || {
      rm -f "$installer"
      fail "could not fetch rustup's installer" "install Rust of at least $rust_wanted some other way, then run this again"
    }
    # An older rustc of the distribution may stay where it is: toolchain.sh prefers rustup's.
    status=0
    RUSTUP_INIT_SKIP_PATH_CHECK=yes sh "$installer" -y --no-modify-path --profile minimal \
      --default-toolchain stable --component rustfmt --component clippy </dev/null || status=$?
    rm -f "$installer"
    [ "$status" = 0 ] || fail "rustup's installer ended with status $status" "see above"
  fi
  choose_rust || fail "no Rust of at least $rust_wanted after the installation, found ${rust_found:-none}" "see above"
}

[ -z "$packages" ] || install_packages
case $rust in
  missing) install_rust ;;
  incomplete)
    if command -v rustup >/dev/null 2>&1; then rustup component add rustfmt clippy; else install_rust; fi
    { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 ||
      fail "this toolchain has no rustfmt or no clippy" "install both for $(command -v cargo)"
    ;;
esac
