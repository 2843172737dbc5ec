#!/bin/sh
# Makes packages of a binary of weft: a .deb, and a .tar.gz with the same files. They hold the binary, manual pages,
# completions, documents, and systemd units that nothing here enables or starts. The same tree and binary give the
# same bytes: times are those of the last commit, or of SOURCE_DATE_EPOCH.
#
# usage: scripts/package.sh [--binary PATH] [--out DIR]
# environment: WEFT_MAINTAINER, who answers for the package, as NAME <ADDRESS>; SOURCE_DATE_EPOCH
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
usage='usage: scripts/package.sh [--binary PATH] [--out DIR]'

fail() { # message hint
  echo "error: $1" >&2
  echo "hint: $2" >&2
  exit 1
}

# Nobody can be written to at .invalid (RFC 2606): whoever hands packages out names somebody who can.
maintainer=${WEFT_MAINTAINER:-Weft maintainers <maintainers@weft.invalid>}
case $maintainer in
  *"
"*) fail "WEFT_MAINTAINER has more than one line" "WEFT_MAINTAINER='Name <address@example.org>'" ;;
  ?*' <'?*@?*'>') ;;
  *) fail "WEFT_MAINTAINER is '$maintainer'" "expected is NAME <ADDRESS>: WEFT_MAINTAINER='Name <address@example.org>'" ;;
esac

binary=$top/target/release/weft out=${CARGO_TARGET_DIR:-$top/target}/package
[ -z "${CARGO_TARGET_DIR:-}" ] || binary=$CARGO_TARGET_DIR/release/weft
while [ $# -gt 0 ]; do
  case $1 in
    --binary | --out)
      [ $# -ge 2 ] && [ -n "$2" ] || { printf 'error: %s needs a path\nhint: %s\n' "$1" "$usage" >&2; exit 2; }
      case $1 in --binary) binary=$2 ;; *) out=$2 ;; esac
      shift 2
      ;;
    --help) echo "$usage"; exit 0 ;;
    *) printf 'error: unknown argument %s\nhint: %s\n' "$1" "$usage" >&2; exit 2 ;;
  esac
done

[ -f "$binary" ] && [ -x "$binary" ] || fail "there is no program at $binary" "make build, or name another one with --binary"
for tool in dpkg-deb strip gzip tar; do
  command -v "$tool" >/dev/null 2>&1 || fail "$tool is missing" "apt-get install dpkg binutils gzip tar"
done
binary=$(realpath "$binary")
version=$("$binary" -V | sed -n 's/^weft //p')
wanted=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$top/Cargo.toml")
[ "$version" = "$wanted" ] || fail "$binary is version ${version:-unknown}, this tree is $wanted" "make build"
architecture=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
umask 022
# Names are sorted by their bytes, wherever this runs.
export LC_ALL=C

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
root=$work/root
doc=$root/usr/share/doc/weft

put() { # mode file folder [name]
  mkdir -p "$root/$3"
  install -m "$1" "$2" "$root/$3/${4:-$(basename "$2")}"
}

put 755 "$binary" usr/bin weft
# Symbols stay, for readable backtraces; what only debuggers read goes.
strip --strip-debug "$root/usr/bin/weft"

# What mount(8) calls for `mount -t weft` and for /etc/fstab.
mkdir -p "$root/usr/sbin"
ln -s ../bin/weft "$root/usr/sbin/mount.weft"

"$binary" man "$root/usr/share/man/man1" >/dev/null
gzip -9n "$root/usr/share/man/man1"/*.1

for shell in bash zsh fish; do "$binary" completions "$shell" >"$work/$shell"; done
put 644 "$work/bash" usr/share/bash-completion/completions weft
put 644 "$work/zsh" usr/share/zsh/vendor-completions _weft
put 644 "$work/fish" usr/share/fish/vendor_completions.d weft.fish

# Debian has the licence's text itself.
cat >"$work/copyright" <<'EOT'
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: weft

Files: *
Copyright: 2026 The Weft authors
License: Apache-2.0
 Licensed under the Apache License, Version 2.0; you may not use these files
 except in compliance with it. On Debian systems its text is in
 /usr/share/common-licenses/Apache-2.0.
EOT
put 644 "$work/copyright" usr/share/doc/weft
# For whoever takes the archive, elsewhere than on Debian.
put 644 "$top/LICENSE" usr/share/doc/weft
for page in README.md ARCHITECTURE.md docs/guide.md docs/status.md docs/capacity.md docs/logs.md docs/reference/metrics.md; do
  put 644 "$top/$page" "usr/share/doc/weft/$(dirname "$page")"
done
gzip -9n <"$top/CHANGELOG.md" >"$doc/CHANGELOG.md.gz"
# The form that Debian's tools read, such as apt-listchanges.
printf 'weft (%s) unstable; urgency=medium\n\n  * See /usr/share/doc/weft/CHANGELOG.md.gz.\n\n -- %s  %s\n' \
  "$version" "$maintainer" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$doc/changelog.gz"
for unit in weft-manager.service weft-node.service weft-volume@.service; do
  put 644 "$top/scripts/package/$unit" usr/lib/systemd/system
done
for settings in manager.env node.env volume.env; do put 644 "$top/scripts/package/$settings" etc/weft; done
for example in slurm-prolog.sh slurm-epilog.sh; do
  put 755 "$top/scripts/package/$example" usr/share/doc/weft/examples
done
# Symbols of functions are there on purpose, see above; lintian calls a program with them unstripped.
cat >"$work/overrides" <<'EOT'
weft: unstripped-binary-or-object [usr/bin/weft]
weft: extra-license-file [usr/share/doc/weft/LICENSE]
EOT
put 644 "$work/overrides" usr/share/lintian/overrides weft

# What the binary needs: as its symbols say, or else the oldest C library that Rust's own builds are made for.
depends='libc6 (>= 2.17), libgcc-s1 (>= 3.0)'
if command -v dpkg-shlibdeps >/dev/null 2>&1; then
  mkdir -p "$work/debian"
  printf 'Source: weft\n\nPackage: weft\nArchitecture: any\n' >"$work/debian/control"
  # It warns that the file is not in a package's tree, which is so.
  found=$(cd "$work" && dpkg-shlibdeps -O "$root/usr/bin/weft" 2>"$work/shlibdeps") ||
    fail "dpkg-shlibdeps failed: $(cat "$work/shlibdeps")" "see above"
  depends=$(printf '%s\n' "$found" | sed -n 's/^shlibs:Depends=//p')
fi

# The same files as an archive, before what only dpkg reads.
name=weft-$version-linux-$(uname -m)
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
mkdir -p "$out"
tar -C "$root" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
  --transform "s,^\.,$name," -cf - . | gzip -n >"$work/$name.tar.gz"

control=$root/DEBIAN
mkdir "$control"
cat >"$control/control" <<EOF
Package: weft
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size "$root" | cut -f1)
Depends: $depends
Suggests: nbd-client, qemu-utils
Section: admin
Priority: optional
Description: shared, protected storage from the drives of many machines
 Weft turns the NVMe drives of Linux machines into one fabric and serves
 protected block volumes from it. One program is node, manager, client and
 command line. Nothing is enabled or started by this package: see
 /usr/share/doc/weft/docs/guide.md.
EOF
(cd "$root" && find etc -type f -printf '/%p\n' | sort) >"$control/conffiles"
# Systemd learns of new units; what runs goes on, also over an upgrade, until somebody restarts it.
cat >"$control/postinst" <<'EOF'
#!/bin/sh
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then systemctl --system daemon-reload >/dev/null || true; fi
EOF
# A purge takes the links of units that are no more. What no package can bring back stays: the map in /var/lib/weft.
cat >"$control/postrm" <<'EOF'
#!/bin/sh
set -e
if [ "$1" = purge ]; then
  links=${DPKG_ROOT:-}/etc/systemd/system/multi-user.target.wants
  rm -f "$links/weft-manager.service" "$links/weft-node.service" "$links"/weft-volume@*.service
  if [ -d "${DPKG_ROOT:-}/var/lib/weft" ]; then
    echo "/var/lib/weft stays: the fabric's map and its backups. Remove it by hand if that fabric is no more."
  fi
fi
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then systemctl --system daemon-reload >/dev/null || true; fi
EOF
# Before the program is gone for good, what runs of it ends in order: who writes, then where to, then who decides.
cat >"$control/prerm" <<'EOF'
#!/bin/sh
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  for unit in 'weft-volume@*.service' weft-node.service weft-manager.service; do
    deb-systemd-invoke stop "$unit" >/dev/null || true
  done
fi
EOF
chmod 755 "$control/postinst" "$control/postrm" "$control/prerm"
(cd "$root" && find usr etc -type f -print | sort | xargs md5sum) >"$control/md5sums"
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
deb=weft_${version}_${architecture}.deb
dpkg-deb --root-owner-group -Zgzip --build "$root" "$work/$deb" >/dev/null

mv "$work/$deb" "$work/$name.tar.gz" "$out/"
for made in "$deb" "$name.tar.gz"; do
  printf '%s  %s bytes  sha256 %s\n' "$out/$made" "$(stat -c %s "$out/$made")" "$(sha256sum "$out/$made" | cut -d' ' -f1)"
done
