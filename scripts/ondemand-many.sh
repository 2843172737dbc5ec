#!/bin/sh
# Starts and stops `weft ondemand` on many hosts of this machine: each is a network namespace and a mount namespace
# with an sshd of its own. Prints the seconds from the start to the first file, and of the stop. Needs root, /dev/fuse
# and the packages of `scripts/setup.sh --for test`. Everything is in namespaces of its own, and gone at the end.
#
# usage: scripts/ondemand-many.sh [HOSTS]        (24 hosts where nothing is said, 200 at most)
# environment: WEFT, the program (else the release build of this tree); SIZE of each host's drive (64MiB)
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
count=${1:-24}
case $count in '' | *[!0-9]*) echo "usage: scripts/ondemand-many.sh [HOSTS]" >&2; exit 2 ;; esac
[ "$count" -ge 2 ] && [ "$count" -le 200 ] || { echo "error: $count hosts: expected 2 to 200" >&2; exit 2; }
weft=$(realpath "${WEFT:-${CARGO_TARGET_DIR:-$top/target}/release/weft}")
[ -x "$weft" ] || { printf 'error: there is no program at %s\nhint: make build, or set WEFT\n' "$weft" >&2; exit 1; }

if [ "${WEFT_MANY_INSIDE:-}" != yes ]; then
  exec env WEFT_MANY_INSIDE=yes WEFT="$weft" \
    unshare --net --mount --pid --fork --kill-child --mount-proc --propagation private sh "$0" "$count"
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mount -t tmpfs none /run
mkdir -p /run/sshd "$dir/bin" "$dir/path" "$dir/mnt"
ln -s "$weft" "$dir/bin/weft"
for key in key host-key; do ssh-keygen -q -t ed25519 -N '' -f "$dir/$key"; done
ip link set lo up
ip link add br0 type bridge
ip addr add 10.78.0.254/24 dev br0
ip link set br0 up
cat >"$dir/ssh_config" <<EOT
User root
IdentityFile $dir/key
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
EOT
n=1
while [ "$n" -le "$count" ]; do
  name=h$n address=10.78.0.$n
  ip netns add "$name"
  ip link add "v$n" type veth peer name eth0 netns "$name"
  ip link set "v$n" master br0 up
  ip -n "$name" link set lo up
  ip -n "$name" addr add "$address/24" dev eth0
  ip -n "$name" link set eth0 up
  mkdir -p "$dir/hosts/$name/path" "$dir/hosts/$name/mnt"
  printf 'Host %s\nHostName %s\n' "$name" "$address" >>"$dir/ssh_config"
  cat >"$dir/sshd-$name" <<EOT
ListenAddress $address
HostKey $dir/host-key
AuthorizedKeysFile $dir/key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
SetEnv PATH=$dir/bin:/usr/bin:/bin:/usr/sbin:/sbin
EOT
  nsenter "--net=/run/netns/$name" unshare --mount --propagation private sh -c '
    mount --bind "$1/hosts/$2/path" "$1/path" && mount --bind "$1/hosts/$2/mnt" "$1/mnt" &&
    exec /usr/sbin/sshd -D -e -f "$1/sshd-$2"' sh "$dir" "$name" 2>"$dir/sshd-$name.log" &
  n=$((n + 1))
done
on() { host=$1; shift; ssh -F "$dir/ssh_config" -o BatchMode=yes "$host" "$@"; }
for host in h1 "h$count"; do
  tries=0
  until on "$host" true 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { echo "error: the sshd of $host does not answer: $(cat "$dir/sshd-$host.log")" >&2; exit 1; }
    sleep 0.1
  done
done

now() { date +%s.%N; }
since() { awk -v from="$1" -v to="$(now)" 'BEGIN { printf "%.1f", to - from }'; }
export WEFT_ONDEMAND_STATE="$dir/state"
echo "h[1-$count]" >"$dir/hosts.txt"
echo "== Start on $count hosts"
began=$(now)
"$weft" ondemand start -n "$dir/hosts.txt" -d "$dir/path" -c "$dir/mnt" --ssh "ssh -F $dir/ssh_config" \
  --size "${SIZE:-64MiB}"
on h1 "echo hello >$dir/mnt/first"
first=$(since "$began")
[ "$(on "h$count" "cat $dir/mnt/first")" = hello ] || { echo "error: h$count does not see the file of h1" >&2; exit 1; }
"$weft" ondemand status
echo "== Copy in"
mkdir "$dir/in"
n=0
while [ "$n" -lt 200 ]; do head -c 10000 /dev/zero >"$dir/in/file-$n"; n=$((n + 1)); done
"$weft" ondemand copy "$dir/in" "$dir/mnt"
echo "== Stop"
began=$(now)
"$weft" ondemand stop --delete
stop=$(since "$began")
n=1
while [ "$n" -le "$count" ]; do
  [ -z "$(ls -A "$dir/hosts/h$n/path")" ] || { echo "error: something is left on h$n" >&2; exit 1; }
  n=$((n + 1))
done
printf '\n%s hosts: %s s from the start to the first file, %s s for the stop; nothing is left\n' "$count" "$first" "$stop"
