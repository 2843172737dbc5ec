"""Servers of other protocols that export a mounted file system, and their clients: NFS-Ganesha and Samba.

Servers run in a network and with mounts of their own: their ports are free, nobody else reaches them, and when the suite ends, they end.
"""

import contextlib
import pathlib
import re
import subprocess
import sys
import time

from programs import TOP, Failed, Missing, Seen, run

# How long a server may take until it answers, in seconds: ten times what was seen.
START_S = 120

# How long a server may take to end, in seconds.
STOP_S = 10


class Isolated:
    """Namespaces of our own, and servers in them."""

    def __init__(self, folder):
        self.folder, self.servers = folder, []
        # /run is where servers look for each other.
        self.holder = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "sh", "-c",
                                        "mount -t tmpfs tmpfs /run && ip link set lo up && echo up && exec sleep infinity"],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "up\n":
            raise Failed("no namespaces can be made")

    def inside(self, *words):
        """The words of a command that runs inside."""
        return ["nsenter", f"--target={self.holder.pid}", "--net", "--mount", f"--wdns={self.folder}", *[str(word) for word in words]]

    def run(self, *words, **how):
        """Runs a program inside, to its end."""
        return run(*self.inside(*words), **how)

    def serve(self, *words):
        """Starts a server inside, which stays in the foreground."""
        with open(self.log(words[0]), "ab") as log:
            self.servers.append(subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *self.inside(*words)], stdin=subprocess.DEVNULL,
                                                 stdout=log, stderr=subprocess.STDOUT, start_new_session=True))
        return self.servers[-1]

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
        """Ends the servers, and with the last process the namespaces."""
        for server in reversed(self.servers):
            server.terminate()
            try:
                server.wait(STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        self.holder.kill()
        self.holder.wait()


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
    """A mount exported by NFS-Ganesha, used by NFS 3 and NFS 4, compared with both mounts; files by handles of the other mount."""
    handles, exported = [mount / "handles" for mount in place[:2]], [mount / "export" for mount in place[:2]]
    handles[0].mkdir()
    exported[0].mkdir()
    run(sys.executable, TOP / "suites/handles.py", *handles)
    files, mebibytes = (60, 8) if place.short else (5_000, 320)
    with isolated(place.scratch / "nfs") as servers:
        (servers.folder / "recovery").mkdir()
        configuration = servers.folder / "ganesha.conf"
        configuration.write_text(GANESHA.format(folder=servers.folder, export=exported[0]), encoding="utf-8")
        servers.serve("rpcbind", "-f")
        servers.until("rpcbind", lambda: servers.listens(111))
        servers.serve("ganesha.nfsd", "-F", "-f", configuration, "-L", servers.log("ganesha"), "-p", servers.folder / "ganesha.pid")
        servers.until("the server", lambda: servers.listens(NFS_PORT))
        exports = {3: exported[0], 4: "/weft"}
        for version, export in exports.items():
            servers.run(sys.executable, TOP / "suites/nfs_client.py", version, export, *exported, files, mebibytes)
        nfs_tools(servers, exported, exports, mebibytes)
    return Seen(4, remark=f"NFS 3 and NFS 4; {mebibytes} MiB, {files} files; files by handles")


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


SUITES = {
    "nfs": (nfs, ["dpkg-query", "-W", "-f", "${Version}", "nfs-ganesha"]),
}
