//! What strikes during a round, and ends again: nobody's data is destroyed by any of these, however they overlap.

use crate::Trouble;
use crate::dice::Dice;
use crate::run::Torture;
use crate::world::{Cut, World};
use std::fmt;
use std::time::Duration;

/// Who is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// A node, by its index.
    Node(usize),
    /// The manager.
    Manager,
    /// A client, by its index.
    Client(usize),
    /// A mount of the file system, by its index.
    Mount(usize),
    /// Every node at once.
    AllNodes,
}

/// What happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// SIGKILL; started again when it ends.
    Kill,
    /// SIGSTOP; SIGCONT when it ends.
    Freeze,
    /// The thread of this number stands still, and goes on when it ends; all of a process that has only one.
    Stall(usize),
    /// nftables drop what comes, goes, or both; from and to one other node, or all.
    Cut(Cut, Option<usize>),
}

/// A blow to somebody, for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Who is struck.
    pub victim: Victim,
    /// By what.
    pub blow: Blow,
    /// For how long.
    pub lasts: Duration,
}

/// Longer than a lease of two seconds and the wait for it.
const LONG_MS: (u64, u64) = (3_500, 8_000);

const SHORT_MS: (u64, u64) = (50, 1_500);

impl Fault {
    /// A fault for a fabric of so many nodes, with so many clients and mounts.
    pub fn draw(dice: &mut Dice, world: World, nodes: usize, clients: usize, mounts: usize) -> Fault {
        let victim = match dice.below(24) {
            0..=10 => Victim::Node(dice.below(nodes)),
            11..=13 => Victim::Manager,
            14..=18 => Victim::Client(dice.below(clients)),
            19..=22 if mounts > 0 => Victim::Mount(dice.below(mounts)),
            19..=22 => Victim::Client(dice.below(clients)),
            _ => Victim::AllNodes,
        };
        let blow = match dice.below(if world == World::Namespaces { 8 } else { 5 }) {
            _ if victim == Victim::AllNodes => Blow::Kill,
            0 | 1 => Blow::Kill,
            2 | 3 if matches!(victim, Victim::Node(_)) => Blow::Stall(dice.below(3)),
            2..=4 => Blow::Freeze,
            _ => {
                let cut = [Cut::Both, Cut::In, Cut::Out][dice.below(3)];
                let other = Some(dice.below(nodes)).filter(|o| Victim::Node(*o) != victim);
                Blow::Cut(cut, other.filter(|_| dice.below(2) == 0))
            }
        };
        let (from, to) = if dice.below(2) == 0 { LONG_MS } else { SHORT_MS };
        Fault { victim, blow, lasts: dice.span(from, to) }
    }

    /// Whether two faults would get into each other's way.
    pub fn meets(&self, other: &Fault) -> bool {
        let is_node = |v: Victim| matches!(v, Victim::Node(_) | Victim::AllNodes);
        let has_all = self.victim == Victim::AllNodes || other.victim == Victim::AllNodes;
        self.victim == other.victim || has_all && is_node(self.victim) && is_node(other.victim)
    }

    /// What kind it is, for counting.
    pub fn kind(&self) -> String {
        let victim = match self.victim {
            Victim::Node(_) => "node",
            Victim::Manager => "manager",
            Victim::Client(_) => "client",
            Victim::Mount(_) => "mount",
            Victim::AllNodes => "all nodes",
        };
        let blow = match self.blow {
            Blow::Kill => "killed",
            Blow::Freeze => "frozen",
            Blow::Stall(_) => "with a thread that stands still",
            Blow::Cut(Cut::Both, _) => "cut off",
            Blow::Cut(Cut::In, _) => "deaf",
            Blow::Cut(Cut::Out, _) => "unheard",
        };
        format!("{victim} {blow}")
    }

    /// Strikes.
    ///
    /// # Errors
    /// If a process or rule cannot be reached.
    pub fn strike(&self, torture: &mut Torture) -> Result<(), Trouble> {
        // Before and after: what is written in between may be lost, too.
        self.note_death(torture)?;
        self.strike_once(torture)?;
        self.note_death(torture)
    }

    /// A mount that is struck may lose its session, or has.
    fn note_death(&self, torture: &Torture) -> Result<(), Trouble> {
        match self.victim {
            Victim::Mount(n) => torture.mounts.all[n].may_die(),
            _ => Ok(()),
        }
    }

    fn strike_once(&self, torture: &mut Torture) -> Result<(), Trouble> {
        match (self.victim, self.blow) {
            (Victim::AllNodes, _) => torture.fabric.nodes.iter().for_each(|node| node.member.kill()),
            (Victim::Client(n), Blow::Kill) => torture.clients[n].kill(),
            (Victim::Client(n), Blow::Freeze) => torture.clients[n].signal("STOP")?,
            (Victim::Mount(n), Blow::Kill) => torture.mounts.all[n].kill(),
            (Victim::Mount(n), Blow::Freeze) => torture.mounts.all[n].signal("STOP")?,
            (Victim::Node(n), Blow::Kill) => torture.fabric.nodes[n].member.kill(),
            (Victim::Node(n), Blow::Freeze) => torture.fabric.nodes[n].member.signal("STOP")?,
            (Victim::Node(n), Blow::Stall(thread)) => {
                if !torture.fabric.nodes[n].member.stall(thread)? {
                    torture.fabric.nodes[n].member.signal("STOP")?;
                }
            }
            (_, Blow::Stall(_)) => {}
            (Victim::Manager, Blow::Kill) => torture.fabric.manager.kill(),
            (Victim::Manager, Blow::Freeze) => torture.fabric.manager.signal("STOP")?,
            (_, Blow::Cut(cut, other)) => {
                let other = other.map(|n| torture.fabric.nodes[n].member.host.clone());
                self.host(torture).cut(cut, other.as_ref())?;
            }
        }
        Ok(())
    }

    /// Ends.
    ///
    /// # Errors
    /// If a process cannot be started, or a process or rule cannot be reached.
    pub fn heal(&self, torture: &mut Torture) -> Result<(), Trouble> {
        match (self.victim, self.blow) {
            (Victim::AllNodes, _) => {
                (0..torture.fabric.nodes.len()).try_for_each(|n| torture.fabric.start_node(n))?
            }
            (Victim::Client(n), Blow::Kill) => torture.start_client(n)?,
            (Victim::Client(n), Blow::Freeze) => torture.clients[n].signal("CONT")?,
            (Victim::Mount(n), Blow::Kill) => {
                self.note_death(torture)?;
                torture.mounts.all[n].revive();
            }
            (Victim::Mount(n), Blow::Freeze) => {
                torture.mounts.all[n].signal("CONT")?;
                self.note_death(torture)?;
            }
            (Victim::Node(n), Blow::Kill) => torture.fabric.start_node(n)?,
            (Victim::Node(n), Blow::Freeze) => torture.fabric.nodes[n].member.signal("CONT")?,
            (Victim::Node(n), Blow::Stall(_)) => {
                if !torture.fabric.nodes[n].member.resume() {
                    torture.fabric.nodes[n].member.signal("CONT")?;
                }
            }
            (_, Blow::Stall(_)) => {}
            (Victim::Manager, Blow::Kill) => torture.fabric.start_manager()?,
            (Victim::Manager, Blow::Freeze) => torture.fabric.manager.signal("CONT")?,
            (_, Blow::Cut(..)) => {
                self.host(torture).heal()?;
                self.note_death(torture)?;
            }
        }
        Ok(())
    }

    fn host<'a>(&self, torture: &'a Torture) -> &'a crate::world::Host {
        match self.victim {
            Victim::Node(n) => &torture.fabric.nodes[n].member.host,
            Victim::Client(n) => &torture.clients[n].host,
            Victim::Mount(n) => &torture.mounts.all[n].host,
            Victim::Manager | Victim::AllNodes => &torture.fabric.manager.host,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let which = match self.victim {
            Victim::Node(n) => format!(" (node-{})", n + 1),
            Victim::Client(n) => format!(" (client-{})", n + 1),
            Victim::Mount(n) => format!(" (mount-{})", n + 1),
            _ => String::new(),
        };
        let from = match self.blow {
            Blow::Cut(_, Some(other)) => format!(" by node-{}", other + 1),
            _ => String::new(),
        };
        write!(f, "{}{which}{from} for {} ms", self.kind(), self.lasts.as_millis())
    }
}
