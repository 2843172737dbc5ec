//! The hosts of a torture run: network namespaces on one bridge where the kernel gives them, addresses of the loopback
//! network where it does not. Everything lives in namespaces of the run's own, so that nothing is left of it, however
//! it ends.

use crate::Trouble;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Tells the program that it is inside, and what it has there.
const INSIDE: &str = "WEFT_TORTURE_INSIDE";

/// How far this run is set apart from the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    /// Hosts are network namespaces: they can be cut off.
    Namespaces,
    /// Hosts are addresses of the loopback network.
    Loopback,
}

/// A host of the run.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name, and that of its namespace.
    pub name: String,
    /// Its address.
    pub ip: Ipv4Addr,
    world: World,
}

/// What a cut takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It hears nothing, and nobody hears it.
    Both,
    /// It hears nothing.
    In,
    /// Nobody hears it.
    Out,
}

impl World {
    /// Goes on inside namespaces of its own, if it can have some: the program is run again there, and ends here when it
    /// ends there. Returns what there is otherwise, or inside.
    ///
    /// # Errors
    /// If the program cannot be run again.
    pub fn enter() -> Result<World, Trouble> {
        match std::env::var(INSIDE).as_deref() {
            Ok("namespaces") => return Ok(World::Namespaces),
            Ok(_) => return Ok(World::Loopback),
            Err(_) => {}
        }
        // Whoever is not root may be root of namespaces of their own.
        let apart = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let as_root: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
        let probe = "mount -t tmpfs none /run && ip link add br0 type bridge && ip netns add probe \
                     && ip netns exec probe nft add table inet probe";
        for user in as_root {
            let mut test = Command::new("unshare");
            test.args(user).args(apart).args(["sh", "-c", probe]);
            let output = test.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
            if output.is_ok_and(|status| status.success()) {
                let program = std::env::current_exe().map_err(|e| Trouble::of("this program's path", e))?;
                let mut again = Command::new("unshare");
                again.args(user).args(apart).arg(program).args(std::env::args_os().skip(1));
                bind(&mut again);
                let ended = again.env(INSIDE, "namespaces").status();
                let ended = ended.map_err(|e| Trouble::of("unshare", e))?;
                std::process::exit(ended.code().unwrap_or(1));
            }
        }
        Ok(World::Loopback)
    }

    /// Makes what hosts are connected by.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_up(self) -> Result<(), Trouble> {
        if self == World::Loopback {
            return Ok(());
        }
        run("mount", &["-t", "tmpfs", "none", "/run"])?;
        ip("link set lo up")?;
        ip("link add br0 type bridge")?;
        ip("addr add 10.77.0.254/24 dev br0")?;
        ip("link set br0 up")
    }

    /// Makes a host. Its address ends in `number`, 1 to 253, which no other has.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn host(self, name: &str, number: u8) -> Result<Host, Trouble> {
        if self == World::Loopback {
            return Ok(Host { name: name.into(), ip: Ipv4Addr::new(127, 77, 0, number), world: self });
        }
        let host = Host { name: name.into(), ip: Ipv4Addr::new(10, 77, 0, number), world: self };
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add v{number} type veth peer name eth0 netns {name}"))?;
        ip(&format!("link set v{number} master br0 up"))?;
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("-n {name} addr add {}/24 dev eth0", host.ip))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        host.nft("add table inet torture")?;
        host.nft("add chain inet torture in { type filter hook input priority 0 ; }")?;
        host.nft("add chain inet torture out { type filter hook output priority 0 ; }")?;
        Ok(host)
    }
}

impl Host {
    /// A program on this host, with its words in a log. All hosts see the same file systems.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&self, program: &Path, args: &[String], log: &Path) -> Result<Child, Trouble> {
        let mut command = match self.world {
            World::Namespaces => {
                // `ip netns exec` would give it mounts of its own, where what is unmounted elsewhere stays.
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{}", self.name)).arg(program);
                command
            }
            World::Loopback => Command::new(program),
        };
        let file = std::fs::OpenOptions::new().create(true).append(true).open(log);
        let file = file.map_err(|e| Trouble::of(log.display(), e))?;
        let copy = file.try_clone().map_err(|e| Trouble::of(log.display(), e))?;
        command.args(args).stdin(Stdio::null()).stdout(file).stderr(copy).env_remove("WEFT_FABRIC");
        bind(&mut command);
        command.spawn().map_err(|e| Trouble::of(program.display(), e))
    }

    /// Cuts the host off, from one other or from all, until it is healed.
    ///
    /// # Errors
    /// If the kernel refuses, or there are no namespaces.
    pub fn cut(&self, cut: Cut, other: Option<&Host>) -> Result<(), Trouble> {
        if cut != Cut::Out {
            let from = other.map_or(String::new(), |o| format!("ip saddr {} ", o.ip));
            self.nft(&format!("add rule inet torture in {from}drop"))?;
        }
        if cut != Cut::In {
            let to = other.map_or(String::new(), |o| format!("ip daddr {} ", o.ip));
            self.nft(&format!("add rule inet torture out {to}drop"))?;
        }
        Ok(())
    }

    /// Ends all cuts of the host.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn heal(&self) -> Result<(), Trouble> {
        self.nft("flush chain inet torture in")?;
        self.nft("flush chain inet torture out")
    }

    fn nft(&self, words: &str) -> Result<(), Trouble> {
        let args: Vec<&str> =
            ["netns", "exec", &self.name, "nft"].into_iter().chain(words.split(' ')).collect();
        run("ip", &args)
    }
}

fn ip(words: &str) -> Result<(), Trouble> {
    run("ip", &words.split(' ').collect::<Vec<_>>())
}

/// Runs a program to its end.
///
/// # Errors
/// What it complained of.
pub fn run(program: &str, args: &[&str]) -> Result<(), Trouble> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|e| Trouble::of(program, e))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Trouble(format!("{program} {}: {said}", args.join(" "))))
        }
    }
}

/// Has a process killed when the one that starts it ends, however it ends.
pub fn bind(command: &mut Command) {
    let die_with_parent = || {
        // SAFETY: prctl with this option takes a number and touches no memory; it may be called between fork and exec.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call, and neither allocates nor takes a lock.
    unsafe { command.pre_exec(die_with_parent) };
}

/// Sends a signal to a child.
///
/// # Errors
/// If it is not there.
pub fn signal(child: &Child, signal: &str) -> Result<(), Trouble> {
    run("kill", &[&format!("-{signal}"), &child.id().to_string()])
}
