"""Servers of other protocols that export a mounted file system, and their clients: NFS-Ganesha and Samba.

Servers run in a network and with mounts of their own: their ports are free, nobody else reaches them, and when the suite ends, they end.
"""

import collections
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time

from programs import TOP, Failed, Seen, run

# How long a server may take until it answers, in seconds: ten times what was seen.
START_S = 120

class Isolated:
    """Namespaces of our own, and servers in them."""

    def __init__(self, folder):
        self.folder, self.servers = folder, []
        # /run is where servers look for each other.
        self.holder = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc",
                                        "--kill-child=KILL", "sh", "-c",
                                        "mount -t tmpfs tmpfs /run && ip link set lo up && echo up && exec sleep infinity"],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "up\n":
            raise Failed("no namespaces can be made")

    def inside(self, *words):
        """The words of a command that runs inside."""
        spaces = f"/proc/{self.holder.pid}/ns"
        return ["nsenter", f"--net={spaces}/net", f"--mount={spaces}/mnt", f"--pid={spaces}/pid_for_children", f"--wdns={self.folder}",
                *[str(word) for word in words]]

    def run(self, *words, **how):
        """Runs a program inside, to its end."""
        return run(*self.inside(*words), **how)

    def serve(self, *words):
        """Starts a server inside, which stays in the foreground."""
        with open(self.log(words[0]), "ab") as log:
            self.servers.append(subprocess.Popen(self.inside(*words), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                                 start_new_session=True))

    def log(self, name):
        """Where a server says what it does."""
        return self.folder / f"{name}.log"

    def until(self, what, is_there):
        """Waits until something is there."""
        deadline = time.monotonic() + START_S
        while not is_there():
            ended = [server.args for server in self.servers if server.poll() is not None]
            if ended or time.monotonic() > deadline:
                said = "\n".join(log.read_text(errors="replace")[-2000:] for log in self.folder.glob("*.log"))
                raise Failed(f"{what} is not there{f', ended: {ended}' if ended else ''}: {said}")
            time.sleep(0.2)

    def listens(self, port):
        """Whether something listens at this port."""
        return bool(re.search(rf":{port}\b", self.run("ss", "-Hltn")))

    def end(self):
        """Ends all that runs inside: its first process goes with the holder, and with that one all others."""
        self.holder.kill()
        self.holder.wait()
        for server in self.servers:
            server.wait()


@contextlib.contextmanager
def isolated(folder):
    """Namespaces for as long as this is used."""
    folder.mkdir()
    made = Isolated(folder)
    try:
        yield made
    finally:
        made.end()


# Other mounts change what is exported: nothing is believed for longer than a call takes.
GANESHA = """\
NFS_CORE_PARAM {{
    Protocols = 3, 4;
    MNT_Port = 2050;
    Enable_NLM = false;
    Enable_RQUOTA = false;
}}
NFSv4 {{
    Graceless = true;
    Lease_Lifetime = 120;
    RecoveryBackend = fs;
    RecoveryRoot = "{folder}/recovery";
    Only_Numeric_Owners = true;
}}
EXPORT {{
    Export_Id = 1;
    Path = "{export}";
    Pseudo = "/weft";
    Access_Type = RW;
    Squash = No_Root_Squash;
    Protocols = 3, 4;
    Transports = TCP;
    SecType = sys;
    Attr_Expiration_Time = 0;
    FSAL {{ Name = VFS; }}
}}
LOG {{ Default_Log_Level = WARN; }}
"""

NFS_PORT = 2049


def nfs(place):
    """A mount exported by NFS-Ganesha, used by NFS 3 and 4, compared with both mounts, also after the server was killed; files by their handles."""
    handles, exported = [mount / "handles" for mount in place[:2]], [mount / "export" for mount in place[:2]]
    handles[0].mkdir()
    exported[0].mkdir()
    run(sys.executable, TOP / "suites/handles.py", *handles)
    files, mebibytes = (60, 8) if place.short else (2_000, 320)
    with isolated(place.scratch / "nfs") as servers:
        (servers.folder / "recovery").mkdir()
        configuration = servers.folder / "ganesha.conf"
        configuration.write_text(GANESHA.format(folder=servers.folder, export=exported[0]), encoding="utf-8")
        servers.serve("rpcbind", "-f")
        servers.until("rpcbind", lambda: servers.listens(111))
        serve_nfs(servers)
        exports = {3: exported[0], 4: "/weft"}
        for version, export in exports.items():
            servers.run(sys.executable, TOP / "suites/nfs_client.py", version, export, *exported, files, mebibytes)
        nfs_tools(servers, exported, exports, mebibytes)
        nfs_restart(servers, exported, exports)
    return Seen(5, remark=f"NFS 3 and NFS 4; {mebibytes} MiB, {files} files; files by handles; the server killed")


def serve_nfs(servers):
    """Starts the server of NFS."""
    servers.serve("ganesha.nfsd", "-F", "-f", servers.folder / "ganesha.conf", "-L", servers.log("ganesha"), "-p", servers.folder / "ganesha.pid")
    servers.until("the server", lambda: servers.listens(NFS_PORT))


def nfs_restart(servers, exported, exports):
    """The server is killed while a client has a file open; the client goes on with the next server."""
    client = subprocess.Popen(servers.inside(sys.executable, TOP / "suites/nfs_client.py", 3, exports[3], *exported), text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        if client.stdout.readline() != "open\n":
            raise Failed(f"no file can be opened by NFS: {client.communicate()[0]}")
        # By its number inside.
        servers.run("kill", "-KILL", (servers.folder / "ganesha.pid").read_text(encoding="ascii").strip())
        servers.servers.pop().wait()
        serve_nfs(servers)
        said = client.communicate("\n", timeout=START_S)[0]
    except subprocess.TimeoutExpired as error:
        raise Failed(f"a client of NFS hangs after its server was started again: {error}") from error
    finally:
        client.kill()
    if client.returncode:
        raise Failed(f"a client of NFS does not go on after its server was started again: {said}")


def nfs_tools(servers, exported, exports, mebibytes):
    """A file goes in by nfs-cp, and comes back by nfs-cat; nfs-ls lists it."""
    source = servers.folder / "source"
    with open("/dev/urandom", "rb") as random, open(source, "wb") as file:
        for _ in range(mebibytes):
            file.write(random.read(1 << 20))
    address = "nfs://127.0.0.1{}?version={}".format
    servers.run("nfs-cp", source, address(f"{exports[3]}/copied", 3))
    run("cmp", source, exported[1] / "copied")
    for version, export in exports.items():
        if not re.search(rf"\b{mebibytes << 20} copied", servers.run("nfs-ls", address(f"{export}/", version))):
            raise Failed(f"NFS {version} does not list a file that is there")
        servers.run("sh", "-c", f"nfs-cat '{address(f'{export}/copied', version)}' | cmp - {source}")
    source.unlink()


# A standalone server, with everything that it writes in a folder of its own. A stream of a file is an extended attribute of it.
SAMBA = """\
[global]
server role = standalone server
disable netbios = yes
smb ports = 445
bind interfaces only = yes
interfaces = lo
private dir = {folder}/private
lock directory = {folder}/lock
state directory = {folder}/state
cache directory = {folder}/cache
pid directory = {folder}/pid
ncalrpc dir = {folder}/ncalrpc
passdb backend = tdbsam
load printers = no
printcap name = /dev/null
vfs objects = acl_xattr streams_xattr
ea support = yes
map archive = no
[weft]
path = {export}
read only = no
[hideunread]
copy = weft
hide unreadable = yes
[hideunwrite]
copy = weft
hide unwriteable files = yes
"""

SMB_PORT = 445

# Who uses the share: an account that every Debian has, and that may not do everything.
SMB_USER, SMB_PASSWORD = "daemon", "weft"

# Tests of smbtorture that reach the file system.
TORTURE = ["acls", "compound", "connect", "create", "delete-on-close-perms", "deny", "dir", "fileid", "getinfo", "ioctl", "lock", "mkdir",
           "openattr", "read", "rename", "rw", "samba3misc", "sdread", "sharemode", "streams", "tcon", "timestamps", "winattr"]
SHORT_TORTURE = ["connect", "delete-on-close-perms", "read", "rw", "samba3misc"]

# Those that fail on this server's share of a local ext4, too, in the same way: they expect Windows, or a server with other shares and rights.
EXPECTED = {
    "compound": {"interim2"},
    "create": {"blob", "gentest", "open", "quota-fake-file"},
    "dir": {"modify", "one"},
    "getinfo": {"complex", "fsinfo"},
    "ioctl": {"bug14769", "bug14788.NETWORK_INTERFACE", "network_interface_info"},
    "rename": {"no_share_delete_no_delete_access", "simple_nodelete"},
    "streams": {"rename", "rename2"},
}


def samba(place):
    """A mount exported by Samba, used by smbclient and compared with the other mount, then chosen tests of smbtorture."""
    exported = [mount / "share" for mount in place[:2]]
    exported[0].mkdir()
    shutil.chown(exported[0], SMB_USER)
    files, mebibytes = (60, 8) if place.short else (2_000, 320)
    with isolated(place.scratch / "samba") as servers:
        for folder in "private", "lock", "state", "cache", "pid", "ncalrpc":
            (servers.folder / folder).mkdir(mode=0o755)
        configuration = servers.folder / "smb.conf"
        configuration.write_text(SAMBA.format(folder=servers.folder, export=exported[0]), encoding="utf-8")
        servers.run("smbpasswd", "-c", configuration, "-s", "-a", SMB_USER, stdin=f"{SMB_PASSWORD}\n{SMB_PASSWORD}\n")
        servers.serve("smbd", "--foreground", "--no-process-group", "--debug-stdout", f"--configfile={configuration}")
        servers.until("the server", lambda: servers.listens(SMB_PORT))
        client = ["--configfile", configuration, "--user", f"{SMB_USER}%{SMB_PASSWORD}"]
        smb_files(servers, client, exported, files, mebibytes)
        passed, skipped, expected = 0, 0, 0
        for suite in SHORT_TORTURE if place.short else TORTURE:
            ended = torture(servers, client, suite, exported[1])
            passed, skipped, expected = passed + ended["success"], skipped + ended["skip"], expected + ended["failure"]
    return Seen(passed, 0, skipped, f"smbclient: {mebibytes} MiB, {files} files; smbtorture: {expected} fail on ext4, too")


def smb_files(servers, client, exported, files, mebibytes):
    """What smbclient writes, renames and removes is so on the other mount, and what that one does is so for smbclient."""
    def smb(*commands):
        """Runs commands of smbclient, and returns what it said. It tells of most errors by words only."""
        said = servers.run("smbclient", "//127.0.0.1/weft", *client, stdin="\n".join(["prompt", "recurse", *commands, ""]))
        if "NT_STATUS_" in said:
            raise Failed(f"smbclient: {said[-3000:]}")
        return said

    # Where smbclient finds and leaves files.
    source, back = servers.folder / "source", servers.folder / "back"
    source.mkdir()
    back.mkdir()
    (source / "large").write_bytes(os.urandom(1 << 20) * mebibytes)
    for n in range(files):
        folder = source / f"d{n % 7}/e{n % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{n}").write_bytes(f"{n}.".encode() * (n * n % 5000))
    smb("mkdir all", "cd all", f"lcd {source}", "mput *")
    run("diff", "-r", source, exported[1] / "all")
    smb("cd all", f"lcd {back}", "mget *")
    run("diff", "-r", source, back)
    for n in range(0, files, 3):
        old = f"d{n % 7}/e{n % 3}/{n}"
        (source / old).rename(source / f"{old}.renamed")
    smb("cd all", *[f"rename d{n % 7}\\e{n % 3}\\{n} d{n % 7}\\e{n % 3}\\{n}.renamed" for n in range(0, files, 3)])
    for n in range(1, files, 3):
        (source / f"d{n % 7}/e{n % 3}/{n}").unlink()
    smb("cd all", *[f"rm d{n % 7}\\e{n % 3}\\{n}" for n in range(1, files, 3)])
    run("diff", "-r", source, exported[1] / "all")
    for at in source, exported[1] / "all":
        with open(at / "large", "r+b") as large:
            large.seek(123_457)
            large.write(b"changed" * 100_000)
        (at / "d0").rename(at / "moved")
    shutil.rmtree(back)
    back.mkdir()
    smb("cd all", f"lcd {back}", "mget *")
    run("diff", "-r", source, back)
    smb("deltree all")
    if os.listdir(exported[1]):
        raise Failed(f"the other mount shows {os.listdir(exported[1])} after all was removed")
    shutil.rmtree(source)
    shutil.rmtree(back)


def torture(servers, client, suite, other):
    """Runs a suite of smbtorture; returns how its tests have ended. Its local files are on the other mount."""
    said = servers.run("smbtorture", "//127.0.0.1/weft", *client, "--target=samba3", f"--option=torture:localdir={other}", f"smb2.{suite}",
                       ok=(0, 1))
    ended = re.findall(r"^(success|failure|error|skip): (\S+)", said, re.MULTILINE)
    wrong = {name for how, name in ended if how in ("failure", "error")} - EXPECTED.get(suite, set())
    if wrong or not ended:
        raise Failed(f"smbtorture smb2.{suite}: {', '.join(sorted(wrong)) or 'nothing ran'}: {said[-6000:]}")
    return collections.Counter(how for how, _ in ended)


SUITES = {
    "nfs": (nfs, ["dpkg-query", "-W", "-f", "${Version}", "nfs-ganesha"]),
    "samba": (samba, ["smbd", "--version"]),
}
