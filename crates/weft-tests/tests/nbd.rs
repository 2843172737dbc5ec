//! Volumes over NBD with the clients that people use: qemu-img, qemu-io, nbdinfo, nbdcopy and fio, against
//! `weft up` and `weft volume serve`, over TCP and over a Unix socket.

use serde_json::Value;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::sleep;
use std::time::Duration;
use weft_tests::{program, weft};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Seconds after which a client counts as stuck. Builds share the machine with the tests.
const CLIENT_SECONDS: &str = "180";

/// What a command wrote to its standard output.
///
/// # Panics
/// If it failed or was stuck; with everything it said.
fn run(command: &mut Command) -> String {
    let output = output_of(command);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}\n{complained}", output.status);
    said
}

fn output_of(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// A client program with a time limit.
fn client(name: &str) -> Command {
    let mut command = Command::new(program("timeout"));
    command.arg(CLIENT_SECONDS).arg(program(name));
    command
}

/// `weft`, on its own: what the caller's environment says of fabrics does not count.
fn weft_command() -> Command {
    let mut command = Command::new(weft());
    command.env_remove("WEFT_FABRIC");
    command
}

/// A fabric of three nodes with one drive each. Tests that run at the same time share one.
struct Fabric {
    folder: PathBuf,
    volumes: AtomicU32,
}

impl Fabric {
    fn shared() -> Arc<Fabric> {
        static SHARED: Mutex<Weak<Fabric>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let fabric = Arc::new(Fabric::start());
            *shared = Arc::downgrade(&fabric);
            fabric
        })
    }

    fn start() -> Fabric {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Not below the build's folder: the path of a Unix socket has 107 bytes.
        let folder = std::env::temp_dir().join(format!("weft-nbd-{}-{count}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        let fabric = Fabric { folder, volumes: AtomicU32::new(0) };
        let mut up = weft_command();
        up.args([
            "up",
            "--detach",
            "--nodes",
            "3",
            "--drives",
            "1",
            "--drive-size",
            "1GiB",
            "--sparse",
            "--dir",
        ]);
        run(up.arg(fabric.place()).args(["--port", &free_ports(4).to_string()]));
        fabric
    }

    fn place(&self) -> PathBuf {
        self.folder.join("fabric")
    }

    fn weft(&self, args: &[&str]) -> Command {
        let mut command = weft_command();
        command.arg("--fabric").arg(self.place()).args(args);
        command
    }

    /// A new volume; its name.
    fn volume(&self, size: &str) -> String {
        let name = format!("volume-{}", self.volumes.fetch_add(1, Ordering::Relaxed));
        run(&mut self.weft(&["volume", "create", &name, "--size", size, "--copies", "2", "--thin"]));
        name
    }

    /// The process of a member.
    fn pid(&self, member: &str) -> String {
        let record = fs::read(self.place().join(format!("run/{member}.pid"))).expect("it runs");
        let record: Value = serde_json::from_slice(&record).expect("its record is JSON");
        record["pid"].to_string()
    }

    /// A file in the fabric's folder.
    fn file(&self, name: String) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let output = output_of(weft_command().args(["down", "--dir"]).arg(self.place()));
        if !output.status.success() {
            eprintln!("weft down: {}", String::from_utf8_lossy(&output.stderr));
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The first of so many neighbouring ports of loopback that nobody listens on and no other call was given.
/// Below the range from which the kernel takes ports for outgoing connections.
fn free_ports(count: u16) -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    for _ in 0..2000 {
        let step = (std::process::id() + TRIED.fetch_add(1, Ordering::Relaxed)) % 2000;
        let first = 10_000 + step as u16 * 10;
        if (first..first + count).all(is_free) {
            return first;
        }
    }
    panic!("no {count} neighbouring ports of loopback are free");
}

/// A running `weft volume serve` of one volume.
struct Served {
    child: Child,
    uri: String,
}

impl Served {
    /// Serves the volume at the address, with further options.
    fn start(fabric: &Fabric, volume: &str, addr: &str, options: &[&str]) -> Served {
        let mut command = fabric.weft(&["--json", "volume", "serve", volume, "--nbd", addr]);
        let mut child = command.args(options).stdout(Stdio::piped()).spawn().expect("weft can be started");
        let stdout = child.stdout.take().expect("it is piped");
        let said = serde_json::Deserializer::from_reader(stdout).into_iter::<Value>().next();
        let said = said.expect("it says what it serves").expect("it says so in JSON");
        let uri = said["exports"][0]["uri"].as_str().unwrap_or_else(|| panic!("no URI in {said}")).to_owned();
        Served { child, uri }
    }

    /// Over TCP, at a port of the kernel's choice.
    fn tcp(fabric: &Fabric, volume: &str, options: &[&str]) -> Served {
        Served::start(fabric, volume, "127.0.0.1:0", options)
    }

    fn unix(fabric: &Fabric, volume: &str) -> Served {
        let socket = fabric.file(format!("{volume}.sock"));
        Served::start(fabric, volume, &format!("unix:{}", socket.display()), &[])
    }

    fn terminate(&self) {
        run(Command::new(program("kill")).arg(self.child.id().to_string()));
    }

    /// Asks it to stop, and waits until it has.
    fn stop(mut self) {
        self.terminate();
        let status = self.child.wait().expect("it is a child");
        assert!(status.success(), "weft volume serve ended with {status}");
    }

    /// `qemu-io` with commands, each of which has to succeed.
    fn qemu_io(&self, commands: &[&str]) -> Command {
        let mut command = client("qemu-io");
        command.args(["-f", "raw"]);
        for c in commands {
            command.args(["-c", c]);
        }
        command.arg(&self.uri);
        command
    }

    /// What `nbdinfo` says of the export.
    fn info(&self) -> Value {
        let said = run(client("nbdinfo").args(["--json", &self.uri]));
        let mut info: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
        info["exports"][0].take()
    }

    /// The allocation as `nbdinfo` sees it: offset, length, and whether it is a hole.
    fn map(&self) -> Vec<(u64, u64, bool)> {
        let said = run(client("nbdinfo").args(["--map", "--json", &self.uri]));
        let map: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
        let number = |extent: &Value, key: &str| extent[key].as_u64().unwrap_or_else(|| panic!("{extent}"));
        let extents = map.as_array().unwrap_or_else(|| panic!("{map}"));
        extents.iter().map(|e| (number(e, "offset"), number(e, "length"), number(e, "type") == 3)).collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Writes an image of `size` bytes that is mostly holes: noise at the start, across the middle and at the
/// end.
fn write_image(path: &Path, size: u64) {
    let mut file = fs::File::create(path).expect("the folder can be written");
    file.set_len(size).expect("a sparse file");
    let mut noise = vec![0; 3 * MIB as usize];
    let mut state = 0x1234_5678_9abc_def1_u64;
    for word in noise.chunks_exact_mut(8) {
        // Marsaglia's xorshift: no two blocks alike, and the same in every run.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    for (at, length) in [(0, 3 * MIB), (size / 2 + 12 * KIB, 100 * KIB), (size - 4 * KIB, 4 * KIB)] {
        file.seek(SeekFrom::Start(at)).expect("inside");
        file.write_all(&noise[..length as usize]).expect("the disk has room");
    }
}

fn same_files(a: &Path, b: &Path) -> bool {
    let read = |path: &Path| {
        let mut bytes = Vec::new();
        fs::File::open(path).expect("it was written").read_to_end(&mut bytes).expect("it can be read");
        bytes
    };
    read(a) == read(b)
}

#[test]
fn an_export_says_what_it_can_do() {
    let fabric = Fabric::shared();
    let volume = fabric.volume("64MiB");
    for (options, block_min, is_read_only) in
        [(&[][..], 512, false), (&["--shared"][..], 4096, false), (&["--read-only"][..], 4096, true)]
    {
        let served = Served::tcp(&fabric, &volume, options);
        let info = served.info();
        assert_eq!(info["export-name"], *volume, "{info}");
        assert_eq!(info["export-size"], 64 * MIB);
        assert_eq!(info["block_size_minimum"], block_min);
        assert_eq!(info["block_size_preferred"], 4096);
        assert_eq!(info["block_size_maximum"], 32 * MIB);
        assert_eq!(info["contexts"][0], "base:allocation");
        assert_eq!(info["is_read_only"], is_read_only);
        assert_eq!(info["is_rotational"], false);
        for flag in ["can_multi_conn", "can_flush", "can_fua", "can_df", "can_cache"] {
            assert_eq!(info[flag], true, "{flag}");
        }
        for flag in ["can_trim", "can_zero", "can_fast_zero"] {
            assert_eq!(info[flag], !is_read_only, "{flag}");
        }
        served.stop();
    }
}

#[test]
fn the_only_export_is_the_default_and_another_name_is_refused() {
    let fabric = Fabric::shared();
    let volume = fabric.volume("16MiB");
    let served = Served::tcp(&fabric, &volume, &[]);
    let base = served.uri.strip_suffix(&volume).expect("the URI ends in the export's name");
    assert_eq!(run(client("nbdinfo").args(["--size", base])).trim(), (16 * MIB).to_string());
    assert!(run(client("nbdinfo").args(["--list", base])).contains(&format!("export=\"{volume}\"")));
    let refused = output_of(client("nbdinfo").arg(format!("{base}other")));
    let complained = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && complained.contains("No such file or directory"), "{complained}");
}

#[test]
fn patterns_are_read_back_over_tcp_and_unix() {
    let fabric = Fabric::shared();
    for over_unix in [false, true] {
        let volume = fabric.volume("64MiB");
        let served = match over_unix {
            true => Served::unix(&fabric, &volume),
            false => Served::tcp(&fabric, &volume, &[]),
        };
        run(&mut served.qemu_io(&[
            "write -P 0xab 0 64k",
            "read -P 0xab 0 64k",
            // Sectors inside a block, which the client of an exclusive attach may write.
            "write -f -P 0x11 1049088 512",
            "read -P 0 1048576 512",
            "read -P 0x11 1049088 512",
            "read -P 0 1049600 3072",
            "write -z 4k 8k",
            "read -P 0xab 0 4k",
            "read -P 0 4k 8k",
            "write -z -u 16k 8k",
            "read -P 0 16k 8k",
            "discard 32k 4k",
            "read -P 0 32k 4k",
            "read -P 0xab 36k 28k",
            "write -f -P 0xcd 8M 30M",
            "read -P 0xcd 8M 30M",
            "flush",
        ]));
        let holes: Vec<_> = served.map().into_iter().filter(|e| e.2).map(|e| (e.0, e.1)).collect();
        let tail = 38 * MIB;
        assert_eq!(
            holes,
            [
                (4 * KIB, 8 * KIB),
                (16 * KIB, 8 * KIB),
                (32 * KIB, 4 * KIB),
                (64 * KIB, MIB - 64 * KIB),
                (MIB + 4 * KIB, 7 * MIB - 4 * KIB),
                (tail, 64 * MIB - tail),
            ]
        );
        served.stop();
    }
}

#[test]
fn a_read_only_export_refuses_writes_and_a_shared_one_takes_them_from_two_servers() {
    let fabric = Fabric::shared();
    let volume = fabric.volume("16MiB");
    let served = Served::tcp(&fabric, &volume, &["--read-only"]);
    assert!(!output_of(&mut served.qemu_io(&["write 0 4k"])).status.success());
    run(served.qemu_io(&["read -P 0 0 4k"]).arg("-r"));
    served.stop();
    let one = Served::tcp(&fabric, &volume, &["--shared"]);
    let other = Served::tcp(&fabric, &volume, &["--shared"]);
    for (pattern, writer, reader) in [(1, &one, &other), (2, &other, &one)] {
        run(&mut writer.qemu_io(&[&format!("write -P {pattern} 0 1M")]));
        run(&mut reader.qemu_io(&[&format!("read -P {pattern} 0 1M")]));
    }
}

/// A client of libnbd that reads the reply before it has sent all of a request finds no request
/// that the reply belongs to, and the connection is of no more use. Over a Unix socket, which holds
/// little, that was so for most.
const REFUSED_WRITES: &str = "
import errno
h.set_strict_mode(0)
h.connect_uri(uri)
MIB = 1 << 20
size = h.get_size()
read_only = h.is_read_only()
for length, offset, expected in [(MIB, 100, errno.EINVAL), (MIB, size - 4096, errno.ENOSPC),
                                 (4 * MIB, size, errno.ENOSPC),
                                 (33 * MIB, 0, errno.EINVAL), (64 * MIB, 0, errno.EINVAL)] * 5:
    try:
        h.pwrite(bytes(length), offset)
        raise SystemExit(f'{length} bytes at {offset} were taken')
    except nbd.Error as error:
        assert error.errnum == (errno.EPERM if read_only else expected), (length, offset, error.string)
    assert h.pread(4096, 0) == bytes(4096)
print('refused, and connected')
";

#[test]
fn libnbd_stays_connected_when_its_writes_are_refused() {
    let fabric = Fabric::shared();
    let volume = fabric.volume("64MiB");
    for options in [&[][..], &["--read-only"][..]] {
        let socket = fabric.file(format!("{volume}.sock"));
        let served = Served::start(&fabric, &volume, &format!("unix:{}", socket.display()), options);
        assert_eq!(run(&mut nbdsh(&served, &[], REFUSED_WRITES)), "refused, and connected\n");
        served.stop();
    }
}

#[test]
fn an_image_is_converted_in_and_out() {
    let fabric = Fabric::shared();
    let volume = fabric.volume("256MiB");
    let (image, back) = (fabric.file(format!("{volume}.raw")), fabric.file(format!("{volume}.back")));
    write_image(&image, 256 * MIB);
    let served = Served::unix(&fabric, &volume);
    let uri = &served.uri;
    let raw = ["-f", "raw"];
    let said = run(client("qemu-img").args(["info", "--output=json"]).args(raw).arg(uri));
    let info: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(info["virtual-size"], 256 * MIB, "{info}");
    run(client("qemu-img").args(["convert", "-n", "-O", "raw"]).args(raw).arg(&image).arg(uri));
    run(client("qemu-img").args(["compare", "-F", "raw"]).args(raw).arg(&image).arg(uri));
    run(client("qemu-img").args(["convert", "-O", "raw"]).args(raw).arg(uri).arg(&back));
    assert!(same_files(&image, &back));
    let held: u64 = served.map().iter().filter(|e| !e.2).map(|e| e.1).sum();
    assert!(held < 4 * MIB, "holes were written as data: {held} bytes are held");
    served.stop();
}

#[test]
fn an_image_is_copied_in_and_out_over_several_connections() {
    let fabric = Fabric::shared();
    let volume = fabric.volume("256MiB");
    let (image, back) = (fabric.file(format!("{volume}.raw")), fabric.file(format!("{volume}.back")));
    write_image(&image, 256 * MIB);
    let served = Served::tcp(&fabric, &volume, &["--shared"]);
    run(client("nbdcopy").args(["--connections=4", "--flush"]).arg(&image).arg(&served.uri));
    run(client("nbdcopy").args(["--connections=4"]).arg(&served.uri).arg(&back));
    assert!(same_files(&image, &back));
    served.stop();
}

#[test]
fn fio_verifies_what_it_wrote() {
    let fabric = Fabric::shared();
    for (options, block) in [(&[][..], "512-32k"), (&["--shared"][..], "4k-64k")] {
        let volume = fabric.volume("64MiB");
        let served = Served::tcp(&fabric, &volume, options);
        let mut fio = client("fio");
        fio.args([
            "--name=verify",
            "--ioengine=nbd",
            "--rw=randrw",
            "--iodepth=32",
            "--size=32M",
            "--minimal",
        ]);
        fio.args([
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--randseed=7",
            "--bs_unaligned=0",
        ]);
        run(fio.arg(format!("--bsrange={block}")).arg(format!("--uri={}", served.uri)));
        served.stop();
    }
}

#[test]
fn a_stop_under_load_ends_in_order_and_frees_the_volume() {
    let fabric = Fabric::shared();
    let volume = fabric.volume("64MiB");
    let served = Served::tcp(&fabric, &volume, &[]);
    let mut fio = client("fio");
    fio.args(["--name=load", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--iodepth=32", "--size=32M"]);
    fio.args(["--time_based", "--runtime=60"]).arg(format!("--uri={}", served.uri));
    let mut load = fio.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("fio can be started");
    let began = (0..600).any(|_| {
        sleep(Duration::from_millis(100));
        served.map().iter().any(|extent| !extent.2)
    });
    served.stop();
    let ended = load.wait().expect("it is a child");
    assert!(began, "fio wrote nothing");
    assert!(!ended.success(), "fio must notice that the server has stopped");
    // Detached: another exclusive attach has nothing to wait for.
    let again = Served::tcp(&fabric, &volume, &[]);
    run(&mut again.qemu_io(&["read 0 64k"]));
    again.stop();
}

#[test]
fn a_client_does_not_notice_that_a_node_dies() {
    // A fabric of its own: the others' tests need all nodes.
    let fabric = Fabric::start();
    let volume = fabric.volume("64MiB");
    let served = Served::tcp(&fabric, &volume, &["--shared"]);
    let mut fio = client("fio");
    fio.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--bs=16k", "--iodepth=8", "--size=64M"]);
    // Slow enough that the node dies in the midst of it.
    fio.args([
        "--rate=8M",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--randseed=7",
        "--minimal",
    ]);
    fio.arg(format!("--uri={}", served.uri)).stdout(Stdio::null()).stderr(Stdio::piped());
    let load = fio.spawn().expect("fio can be started");
    let began = (0..600).any(|_| {
        sleep(Duration::from_millis(100));
        served.map().iter().any(|extent| !extent.2)
    });
    run(&mut fabric.weft(&["node", "stop", "node-2", "--kill"]));
    let ended = load.wait_with_output().expect("it is a child");
    assert!(began, "fio wrote nothing");
    assert!(ended.status.success(), "fio: {}", String::from_utf8_lossy(&ended.stderr));
    served.stop();
}

/// A line of `nbdsh` with the export's URI in `uri` and further words, each under its name.
fn nbdsh(served: &Served, words: &[(&str, &str)], script: &str) -> Command {
    let mut command = client("nbdsh");
    // The module belongs to the distribution's Python, which need not be the first one.
    command.env("PATH", "/usr/bin:/bin").arg("-c").arg(format!("uri = {:?}", served.uri));
    for (name, word) in words {
        command.arg("-c").arg(format!("{name} = {word:?}"));
    }
    command.args(["-c", script]);
    command
}

/// Opens eight connections. What one of them has been told is written, all others read.
const EIGHT_CONNECTIONS: &str = "
import errno, urllib.request
connections = []
for _ in range(8):
    connection = nbd.NBD()
    connection.connect_uri(uri)
    connections.append(connection)
def on_lanes():
    page = urllib.request.urlopen(metrics).read().decode()
    lines = [line for line in page.splitlines() if line.startswith('weft_server_connections{')]
    return [int(line.rsplit(' ', 1)[1]) for line in lines]
assert on_lanes() == [2, 2, 2, 2], on_lanes()
for number, writer in enumerate(connections):
    data = bytes([number + 1]) * 65536
    writer.pwrite(data, number * 65536, nbd.CMD_FLAG_FUA if number % 2 else 0)
    writer.flush()
    for reader in connections:
        assert reader.pread(65536, number * 65536) == data, number
try:
    connections[3].set_strict_mode(0)
    connections[3].pwrite(bytes(512), 0)
    raise SystemExit('a part of a block was taken')
except nbd.Error as error:
    assert error.errnum == errno.EINVAL, error.string
connections.pop(1).shutdown()
connections.pop(1).shutdown()
import time
for _ in range(200):
    if sum(on_lanes()) == 6:
        break
    time.sleep(0.05)
assert sorted(on_lanes()) == [1, 1, 2, 2], on_lanes()
print('the same on all')
";

#[test]
fn connections_are_spread_over_lanes_and_see_the_same_data() {
    let fabric = Fabric::shared();
    let volume = fabric.volume("256MiB");
    let metrics = format!("127.0.0.1:{}", free_ports(1));
    let served = Served::tcp(&fabric, &volume, &["--lanes", "4", "--metrics", &metrics]);
    let info = served.info();
    assert_eq!((&info["block_size_minimum"], &info["can_multi_conn"]), (&4096.into(), &true.into()));
    let page = format!("http://{metrics}/metrics");
    let said = run(&mut nbdsh(&served, &[("metrics", &page)], EIGHT_CONNECTIONS));
    assert_eq!(said, "the same on all\n");
    let (image, back) = (fabric.file(format!("{volume}.raw")), fabric.file(format!("{volume}.back")));
    write_image(&image, 256 * MIB);
    run(client("nbdcopy").args(["--connections=8", "--flush"]).arg(&image).arg(&served.uri));
    run(client("nbdcopy").args(["--connections=8"]).arg(&served.uri).arg(&back));
    assert!(same_files(&image, &back));
    run(client("qemu-img").args(["compare", "-f", "raw", "-F", "raw"]).arg(&image).arg(&served.uri));
    served.stop();
    // Two volumes of one server share its threads.
    let other = fabric.volume("16MiB");
    let served = Served::tcp(&fabric, &volume, &[&other, "--lanes", "2", "--shared"]);
    let second = served.uri.replace(&volume, &other);
    run(client("nbdcopy").args(["--connections=4"]).arg(&served.uri).arg(&back));
    assert!(same_files(&image, &back));
    run(client("qemu-io").args(["-f", "raw", "-c", "write -P 9 0 4M", "-c", "read -P 9 0 4M"]).arg(&second));
    served.stop();
}

#[test]
fn lanes_and_sectors_that_do_not_go_together_are_refused() {
    let fabric = Fabric::shared();
    let volume = fabric.volume("16MiB");
    let refused = |options: &[&str], words: &str| {
        let serve = [&["volume", "serve", &volume, "--nbd", "127.0.0.1:0"], options].concat();
        let output = output_of(&mut fabric.weft(&serve));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(words) && said.contains("hint: "), "{said}");
    };
    refused(&["--lanes", "0"], "expected 1 to 8 lanes");
    refused(&["--lanes", "16"], "expected 1 to 8 lanes");
    refused(&["--lanes", "2", "--sector", "512"], "has one lane");
    refused(&["--shared", "--sector", "512"], "needs an exclusive attach");
    refused(&["--sector", "1024"], "1024");
    for (options, block_min) in
        [(&["--sector", "4096"][..], 4096), (&["--sector", "512"], 512), (&["--lanes", "2"], 4096)]
    {
        let served = Served::tcp(&fabric, &volume, options);
        assert_eq!(served.info()["block_size_minimum"], block_min, "{options:?}");
        served.stop();
    }
}

/// Writes to the second half of an export until it is killed.
const WRITES_ON: &str = "
h.connect_uri(uri)
print('begun', flush=True)
half = h.get_size() // 2
data = nbd.Buffer.from_bytearray(bytearray(65536))
while True:
    cookies = [h.aio_pwrite(data, half + n * 65536) for n in range(64)]
    while h.aio_in_flight() > 0:
        h.poll(-1)
    assert all(h.aio_command_completed(cookie) for cookie in cookies)
";

#[test]
fn a_client_of_one_lane_is_killed_while_the_others_go_on() {
    let fabric = Fabric::shared();
    let volume = fabric.volume("64MiB");
    let served = Served::tcp(&fabric, &volume, &["--lanes", "3"]);
    let mut fio = client("fio");
    fio.args(["--name=verify", "--ioengine=nbd", "--rw=randrw", "--bs=4k", "--iodepth=8", "--numjobs=3"]);
    fio.args(["--size=8M", "--offset_increment=8M", "--rate=4M", "--verify=crc32c", "--verify_fatal=1"]);
    fio.args(["--verify_state_save=0", "--randseed=7", "--minimal"]).arg(format!("--uri={}", served.uri));
    let load = fio.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("fio can be started");
    for _ in 0..3 {
        let mut writer = Spoken::start(&mut nbdsh(&served, &[], WRITES_ON));
        writer.hears("begun");
        sleep(Duration::from_millis(300));
        writer.kill();
    }
    let ended = load.wait_with_output().expect("it is a child");
    assert!(ended.status.success(), "fio: {}", String::from_utf8_lossy(&ended.stderr));
    served.stop();
}

/// A program that is talked to by lines, and killed at the end.
struct Spoken {
    child: Child,
    said: std::io::BufReader<std::process::ChildStdout>,
}

impl Spoken {
    fn start(command: &mut Command) -> Spoken {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
        let said = std::io::BufReader::new(child.stdout.take().expect("it is piped"));
        Spoken { child, said }
    }

    fn tell(&mut self, line: &str) {
        let words = self.child.stdin.as_mut().expect("it is piped");
        writeln!(words, "{line}").and_then(|()| words.flush()).expect("it listens");
    }

    /// Waits for this line.
    fn hears(&mut self, line: &str) {
        let mut said = String::new();
        std::io::BufRead::read_line(&mut self.said, &mut said).expect("it speaks");
        assert_eq!(said.trim_end(), line);
    }

    /// Kills the client itself, not only the program that bounds its time.
    fn kill(&mut self) {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        for child in fs::read_to_string(children).unwrap_or_default().split_whitespace() {
            let _ = Command::new(program("kill")).args(["-KILL", child]).status();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Spoken {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Nodes that stand still until this is dropped.
struct Frozen(Vec<String>);

impl Frozen {
    fn nodes(fabric: &Fabric) -> Frozen {
        let frozen = Frozen((1..=3).map(|node| fabric.pid(&format!("node-{node}"))).collect());
        frozen.signal("-STOP");
        frozen
    }

    fn signal(&self, signal: &str) {
        run(Command::new(program("kill")).arg(signal).args(&self.0));
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.signal("-CONT");
    }
}

/// Sends a write of old data when it is told to, and says when all of it is sent.
const WRITES_OLD: &str = "
h.connect_uri(uri)
h.pread(4096, 0)
print('ready', flush=True)
input()
data = nbd.Buffer.from_bytearray(bytearray(b'o' * 65536))
h.aio_pwrite(data, 0)
while h.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:
    h.poll(100)
print('sent', flush=True)
input()
";

/// Writes what it is told to, and then looks for two seconds whether it stays.
const WRITES_NEW: &str = "
import time
h.connect_uri(uri)
h.pread(4096, 0)
print('ready', flush=True)
for line in iter(input, 'end'):
    data = bytes([int(line)]) * 65536
    h.pwrite(data, 0)
    print('written', flush=True)
    for _ in range(50):
        found = h.pread(65536, 0)
        assert found == data, (line, found[:8])
        time.sleep(0.01)
    print('kept', flush=True)
";

/// A driver gives a request up after a while and sends it again on another connection, here on another
/// lane. The first one is on its way to nodes that stand still. What was sent later stays.
#[test]
fn a_write_that_is_sent_again_on_another_lane_is_not_undone_by_the_first() {
    // A fabric of its own: the others' tests need nodes that run.
    let fabric = Fabric::start();
    let volume = fabric.volume("16MiB");
    let served = Served::tcp(&fabric, &volume, &["--lanes", "2"]);
    let mut new = Spoken::start(&mut nbdsh(&served, &[], WRITES_NEW));
    new.hears("ready");
    for round in 1..=6 {
        let mut old = Spoken::start(&mut nbdsh(&served, &[], WRITES_OLD));
        old.hears("ready");
        let frozen = Frozen::nodes(&fabric);
        old.tell("go");
        old.hears("sent");
        sleep(Duration::from_millis(50));
        old.kill();
        new.tell(&round.to_string());
        sleep(Duration::from_millis(150));
        drop(frozen);
        new.hears("written");
        new.hears("kept");
    }
    served.stop();
}
