//! How large a fabric is explored, how much may go wrong in it, and which rule is broken on purpose.
//!
//! It owns the numbers. It never explores anything.

/// A rule that is broken on purpose, to see that the checker notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// An eviction does not wait for the victim's lease (R11).
    LeaseNotWaitedOut,
    /// A promise to stop vouching counts before what was vouched for has run out.
    PromiseNotWaitedOut,
    /// What is waited out is waited out without the margin for clocks that run at different rates.
    NoMarginForDrift,
    /// An eviction goes ahead though nobody has promised to stop vouching.
    EvictWithoutPromise,
    /// An eviction takes the last in-sync member away.
    EvictTheLast,
    /// A new manager takes every lease for expired.
    LeaderDoesNotWait,
    /// A manager grants leases while another one has committed.
    TwoManagersGrant,
    /// A new manager begins with the map before the last commit, and believes it more than the drives.
    EpochUsedAgain,
    /// A grant counts before its map is adopted.
    GrantBeforeAdoption,
    /// A target vouches for itself.
    VouchForOneself,
    /// A target vouches though it has not been granted a lease since it started.
    VouchAfterRestart,
    /// A promise ends with any grant, also one that was asked for before it was given.
    PromiseEndsWithOldGrant,
    /// A replica that comes back is in-sync at once.
    RejoinInSync,
    /// A syncing replica says that all is verified when nothing is.
    PromoteWithoutResync,
    /// The word of an earlier stint promotes.
    PromoteByOldWord,
    /// A resync begins before in-sync members know of it (R13), and a source answers that does not.
    CopyTooEarly,
    /// A syncing replica takes a write before it has verified the block (R4).
    WriteBeforeVerify,
    /// A drive that hands over leaves before its target knows that it has.
    LeaveBeforeYield,
    /// What a former process of a target said of its drive is taken for the word of the present one.
    FormerProcessIsHeard,
    /// The promise of a process counts that does not have its target's drive, while another one has.
    AnyPromiseCounts,
    /// A drive that its target's process does not have is taken for gone without the word of its peers.
    LeftBehindIsGone,
    /// A manager takes no note of a target's return.
    ReturnUnnoticed,
}

/// The fabric and the faults that are explored.
#[derive(Clone, Debug)]
pub struct Scope {
    /// For people.
    pub name: &'static str,
    /// Targets, each with one drive.
    pub nodes: usize,
    /// Per group the targets that begin as its members.
    pub groups: Vec<Vec<usize>>,
    /// Ticks of a lease as the manager counts it; a target's clock may be slow, so that it lasts up to `wait`.
    pub lease: u8,
    /// Ticks that the manager waits out.
    pub wait: u8,
    /// Writes per group.
    pub writes: u8,
    /// The highest epoch of a group: no manager commits beyond it.
    pub epochs: u64,
    /// Targets' processes that die.
    pub crashes: u8,
    /// Managers that die.
    pub deaths: u8,
    /// Drives that break under a target, and are sound again after its restart.
    pub breaks: u8,
    /// Drives that are gone for good.
    pub losses: u8,
    /// Answers that get lost, with the connection.
    pub hangups: u8,
    /// Grants that arrive late.
    pub delays: u8,
    /// Drives that people have emptied.
    pub drains: u8,
    /// Second processes of a target, without its drive, that join in the place of one that hangs and has it.
    pub usurpers: u8,
    /// Drives whose loss people accept.
    pub accepts: u8,
    /// Whether what is gone is rebuilt elsewhere at once; otherwise only what failed.
    pub rebuilds: bool,
    /// The rules that are broken.
    pub broken: &'static [Broken],
}

impl Scope {
    /// Two copies on two nodes, nothing goes wrong but that processes are slow.
    pub fn pair() -> Scope {
        Scope {
            name: "two copies",
            nodes: 2,
            groups: vec![vec![0, 1]],
            lease: 1,
            wait: 2,
            writes: 2,
            epochs: 20,
            crashes: 0,
            deaths: 0,
            breaks: 0,
            losses: 0,
            hangups: 0,
            delays: 0,
            drains: 0,
            usurpers: 0,
            accepts: 0,
            rebuilds: false,
            broken: &[],
        }
    }

    pub fn breaking(self, broken: &'static [Broken]) -> Scope {
        Scope { broken, ..self }
    }

    pub fn is_broken(&self, rule: Broken) -> bool {
        self.broken.contains(&rule)
    }
}
