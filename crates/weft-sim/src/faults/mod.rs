//! What goes wrong in a run. Every kind of fault has a budget, and what may destroy data spares one good copy of each
//! group (`guard.rs`).
//!
//! Which faults strike, and when, is drawn from the seed before the run begins (`draw.rs`). A fault that is left out
//! changes no other. Each has a number, by which a run can be asked for some of them only.

mod draw;
mod guard;
mod mend;
mod strike;

pub use draw::{KINDS, KINDS_BESIDE, Kind, Scene, draw};
pub use guard::Guard;
pub use mend::{heal, mend};
pub use strike::{Struck, play};

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use weft_rt::sim::Crash;

/// How long a node may take to stop in order where that is only a step on the way, as when a drive is back and to be found.
const RESTART_PATIENCE: Duration = Duration::from_secs(1);

/// Who stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A node.
    Node(usize),
    /// The manager.
    Manager,
    /// A client.
    Client(usize),
}

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A node dies, and starts again after a while.
    Crash {
        /// Which.
        node: usize,
        /// How.
        crash: Crash,
        /// How long it stays away.
        away: Duration,
    },
    /// A node is stopped in order, and starts again after a while.
    Stop {
        /// Which.
        node: usize,
        /// How long it may take to stop before it is killed.
        patience: Duration,
        /// How long it stays away then.
        away: Duration,
    },
    /// All nodes and the manager lose power at once; each comes back in its time.
    Blackout {
        /// When the manager is back.
        manager: Duration,
        /// When each node is back.
        nodes: Vec<Duration>,
    },
    /// The manager dies, and starts again after a while.
    Manager {
        /// How long it stays away.
        away: Duration,
    },
    /// A second manager starts on the same store, while the first one still runs.
    SecondManager {},
    /// The manager's store is slow; where managers share it, some of what is asked of it gets no answer.
    SlowStore {
        /// The longest time until an answer.
        latency: Duration,
        /// Of 1000 transactions so many get none.
        unanswered_per_mille: u64,
        /// How late they are carried out at most, if at all.
        late: Duration,
        /// For how long.
        lasts: Duration,
    },
    /// Two hosts do not hear each other, in one direction or both, for a while.
    Partition {
        /// One host.
        from: IpAddr,
        /// The other.
        to: IpAddr,
        /// Whether both directions are cut.
        both: bool,
        /// For how long.
        lasts: Duration,
    },
    /// A client and a node do not hear each other, in one direction or both, for many leases.
    ClientCut {
        /// The client's host.
        client: IpAddr,
        /// The node's host.
        node: IpAddr,
        /// What the client sends is lost.
        to: bool,
        /// What the node sends is lost.
        from: bool,
        /// For how long.
        lasts: Duration,
    },
    /// The way between two hosts is cut and mended again and again.
    Flap {
        /// One host.
        from: IpAddr,
        /// The other.
        to: IpAddr,
        /// Whether both directions are cut.
        both: bool,
        /// How long it is cut, and then whole, each time.
        period: Duration,
        /// How often.
        times: u32,
    },
    /// Connections between two hosts are reset; requests in flight are lost.
    Reset {
        /// One host.
        a: IpAddr,
        /// The other.
        b: IpAddr,
    },
    /// Everything on the network takes up to this long, for a while.
    Delay {
        /// The longest latency.
        latency: Duration,
        /// For how long.
        lasts: Duration,
    },
    /// Somebody stands still, and then goes on as if nothing had been.
    Stall {
        /// Who.
        who: Who,
        /// For how long.
        lasts: Duration,
    },
    /// A client dies and does not come back.
    Client {
        /// Which.
        client: usize,
    },
    /// The wall clock of a host jumps.
    ClockStep {
        /// Whose.
        host: IpAddr,
        /// By how much it is wrong from then on, in microseconds.
        skew_us: i64,
    },
    /// Operations of a drive take up to this long, for a while.
    SlowDrive {
        /// The node.
        node: usize,
        /// Its drive.
        drive: usize,
        /// The longest latency.
        latency: Duration,
        /// For how long.
        lasts: Duration,
    },
    /// Operations of a drive do not complete for a while.
    StuckDrive {
        /// The node.
        node: usize,
        /// Its drive.
        drive: usize,
        /// For how long.
        lasts: Duration,
    },
    /// Operations of a drive do not complete any more, until somebody restores it.
    HungDrive {
        /// The node.
        node: usize,
        /// Its drive.
        drive: usize,
        /// How long until somebody does.
        lasts: Duration,
    },
    /// A node starts again and does not find one of its drives, which somebody then puts in order.
    MissingDrive {
        /// The node.
        node: usize,
        /// The drive.
        drive: usize,
        /// Whether the node is stopped in order before; otherwise it loses power.
        in_order: bool,
        /// How long the node stays away.
        away: Duration,
        /// How long it then runs without the drive.
        lasts: Duration,
    },
    /// A drive is pulled out of a node that runs, and put back.
    PulledDrive {
        /// The node.
        node: usize,
        /// The drive.
        drive: usize,
        /// How long it is away.
        lasts: Duration,
    },
    /// Writes and flushes of a drive fail, until somebody restores it.
    DriveError {
        /// The node.
        node: usize,
        /// Its drive.
        drive: usize,
        /// How long until somebody does.
        lasts: Duration,
    },
    /// A block of data cannot be read any more, until its place is written again.
    Unreadable {
        /// The node.
        node: usize,
        /// Its drive.
        drive: usize,
        /// When somebody has the fabric scrubbed.
        scrub_after: Duration,
    },
    /// A bit of a block of data flips.
    Rot {
        /// The node.
        node: usize,
        /// Its drive.
        drive: usize,
        /// When somebody has the fabric scrubbed.
        scrub_after: Duration,
    },
    /// A bit flips in what a store keeps beside data, and the node loses power.
    RotInMetadata {
        /// The node.
        node: usize,
        /// Its drive.
        drive: usize,
        /// Which of the blocks in question.
        pick: u64,
        /// How long the node stays away.
        away: Duration,
    },
    /// A drive is pulled, and the node starts again with an empty one in its place, which is to take over.
    Replace {
        /// The node.
        node: usize,
        /// Its drive.
        drive: usize,
        /// How long the node stays away.
        away: Duration,
    },
    /// A node is gone for good.
    Loss {
        /// Which.
        node: usize,
    },
    /// A drive is to be emptied; after a while it may be wanted again.
    Evacuate {
        /// The node of the drive.
        node: usize,
        /// Which of its drives.
        drive: usize,
        /// When it is to take part again, if at all.
        cancel_after: Option<Duration>,
    },
    /// Somebody fills another volume until no drive has room, and discards it all after a while.
    Full {
        /// How long it stays full.
        lasts: Duration,
    },
}

impl Fault {
    /// The drive of its node that it strikes, if it strikes one.
    pub fn drive_mut(&mut self) -> Option<&mut usize> {
        match self {
            Fault::SlowDrive { drive, .. }
            | Fault::StuckDrive { drive, .. }
            | Fault::HungDrive { drive, .. }
            | Fault::MissingDrive { drive, .. }
            | Fault::PulledDrive { drive, .. }
            | Fault::DriveError { drive, .. }
            | Fault::Unreadable { drive, .. }
            | Fault::Rot { drive, .. }
            | Fault::RotInMetadata { drive, .. }
            | Fault::Replace { drive, .. }
            | Fault::Evacuate { drive, .. } => Some(drive),
            _ => None,
        }
    }

    /// The name of its kind.
    pub fn name(&self) -> &'static str {
        match self {
            Fault::Crash { crash: Crash::Process, .. } => "crash",
            Fault::Crash { crash: Crash::PowerCut, .. } => "power-cut",
            Fault::Stop { .. } => "stop",
            Fault::Blackout { .. } => "blackout",
            Fault::Manager { .. } => "manager-crash",
            Fault::SecondManager {} => "second-manager",
            Fault::SlowStore { .. } => "slow-store",
            Fault::Partition { both: true, .. } => "partition",
            Fault::Partition { both: false, .. } => "partition-one-way",
            Fault::ClientCut { .. } => "client-cut",
            Fault::Flap { .. } => "flapping",
            Fault::Reset { .. } => "reset",
            Fault::Delay { .. } => "delay",
            Fault::Stall { who: Who::Node(_), .. } => "node-stall",
            Fault::Stall { who: Who::Manager, .. } => "manager-stall",
            Fault::Stall { who: Who::Client(_), .. } => "client-stall",
            Fault::Client { .. } => "client-death",
            Fault::ClockStep { .. } => "clock-step",
            Fault::SlowDrive { .. } => "slow-drive",
            Fault::StuckDrive { .. } => "stuck-drive",
            Fault::HungDrive { .. } => "hung-drive",
            Fault::MissingDrive { .. } => "missing-drive",
            Fault::PulledDrive { .. } => "pulled-drive",
            Fault::DriveError { .. } => "drive-error",
            Fault::Unreadable { .. } => "unreadable",
            Fault::Rot { .. } => "rot",
            Fault::RotInMetadata { .. } => "rot-in-metadata",
            Fault::Replace { .. } => "replace",
            Fault::Loss { .. } => "loss",
            Fault::Evacuate { .. } => "evacuate",
            Fault::Full { .. } => "full",
        }
    }

    /// How long it lasts; what cannot be told counts as a second.
    pub fn lasts(&self) -> Duration {
        match self {
            Fault::Crash { away, .. }
            | Fault::Manager { away }
            | Fault::RotInMetadata { away, .. }
            | Fault::Replace { away, .. } => *away,
            Fault::Stop { patience, away, .. } => *patience + *away,
            Fault::MissingDrive { away, lasts, .. } => RESTART_PATIENCE + *away + *lasts + RESTART_PATIENCE,
            Fault::PulledDrive { lasts, .. } => *lasts + RESTART_PATIENCE,
            Fault::Blackout { manager, nodes } => nodes.iter().copied().fold(*manager, Duration::max),
            Fault::Partition { lasts, .. }
            | Fault::ClientCut { lasts, .. }
            | Fault::Delay { lasts, .. }
            | Fault::SlowStore { lasts, .. }
            | Fault::Stall { lasts, .. }
            | Fault::SlowDrive { lasts, .. }
            | Fault::StuckDrive { lasts, .. }
            | Fault::HungDrive { lasts, .. }
            | Fault::DriveError { lasts, .. }
            | Fault::Full { lasts } => *lasts,
            Fault::Unreadable { scrub_after, .. } | Fault::Rot { scrub_after, .. } => *scrub_after,
            Fault::Flap { period, times, .. } => *period * 2 * *times,
            Fault::Evacuate { cancel_after, .. } => cancel_after.unwrap_or(Duration::from_secs(1)),
            Fault::Reset { .. } => Duration::from_millis(1),
            Fault::SecondManager {} | Fault::Client { .. } | Fault::ClockStep { .. } | Fault::Loss { .. } => {
                Duration::from_secs(1)
            }
        }
    }

    /// The same, over so many times sooner.
    pub fn shortened(&self, by: u32) -> Fault {
        let mut short = self.clone();
        match &mut short {
            Fault::Crash { away, .. }
            | Fault::Stop { away, .. }
            | Fault::Manager { away }
            | Fault::RotInMetadata { away, .. }
            | Fault::Replace { away, .. } => *away /= by,
            Fault::MissingDrive { away, lasts, .. } => {
                *away /= by;
                *lasts /= by;
            }
            Fault::Blackout { manager, nodes } => {
                *manager /= by;
                nodes.iter_mut().for_each(|node| *node /= by);
            }
            Fault::Partition { lasts, .. }
            | Fault::ClientCut { lasts, .. }
            | Fault::Delay { lasts, .. }
            | Fault::SlowStore { lasts, .. }
            | Fault::Stall { lasts, .. }
            | Fault::SlowDrive { lasts, .. }
            | Fault::StuckDrive { lasts, .. }
            | Fault::HungDrive { lasts, .. }
            | Fault::PulledDrive { lasts, .. }
            | Fault::DriveError { lasts, .. }
            | Fault::Full { lasts } => *lasts /= by,
            Fault::Unreadable { scrub_after, .. } | Fault::Rot { scrub_after, .. } => *scrub_after /= by,
            Fault::Flap { times, .. } => *times = (*times / by).max(1),
            Fault::Evacuate { cancel_after: Some(after), .. } => *after /= by,
            Fault::Evacuate { .. }
            | Fault::Reset { .. }
            | Fault::SecondManager {}
            | Fault::Client { .. }
            | Fault::ClockStep { .. }
            | Fault::Loss { .. } => {}
        }
        short
    }
}

/// A fault of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its number in the plan, from 1.
    pub number: usize,
    /// When it strikes, counted from when faults begin.
    pub at: Duration,
    /// What it is.
    pub fault: Fault,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>3} at {:>9.3} s: {:?}", self.number, self.at.as_secs_f64(), self.fault)
    }
}
