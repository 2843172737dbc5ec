//! What the conductor of IO500 orders: each phase in the terms of IOR, mdtest and the search, without any
//! I/O.

use super::conduct::Io500Options;
use super::find::{FindOrder, WANTED_BYTES};
use super::limits::Io500Limits;
use super::phase::{Form, Task};
use crate::suites::ior::{Access, IorOrder, ReadOrder};
use crate::suites::mdtest::{MdtestOrder, Operation};
use crate::suites::message::Order;
use std::path::PathBuf;

/// The folders of a run, in which all its files are but the timestamp.
pub(super) const FOLDERS: [&str; 4] = ["ior-easy", "ior-hard", "mdtest-easy", "mdtest-hard"];

/// The file that is made before the files that are searched.
pub(super) const TIMESTAMP: &str = "timestamp";

/// How far on the data are that a rank reads: by machines for IOR, by processes for mdtest.
const STRIDE: u32 = 1;

/// What the orders of a run follow from.
pub(super) struct Orders<'a> {
    pub(super) options: &'a Io500Options,
    pub(super) limits: Io500Limits,
    /// The folder of the run.
    pub(super) top: PathBuf,
    /// What decides the content.
    pub(super) seed: u64,
    /// How many ranks the next machine is away.
    pub(super) to_next_machine: u32,
    /// Transfers of each process, of ior-easy and ior-hard: the most before, then what was written.
    pub(super) transfers: [u64; 2],
    /// The same of files, of mdtest-easy and mdtest-hard.
    pub(super) files: [u64; 2],
}

impl Orders<'_> {
    /// What a rank does.
    pub(super) fn order(&self, task: Task, rank: u32) -> Order {
        match task {
            Task::Ior(form, access) => Order::Ior(self.ior(form, access, rank)),
            Task::Mdtest(form, operation) => Order::Mdtest(self.mdtest(form, operation, rank)),
            Task::Find | Task::Timestamp => Order::Find(FindOrder {
                top: self.top.clone(),
                timestamp: self.top.join(TIMESTAMP),
                rank,
                ranks: self.limits.processes,
                expected: self.files.iter().sum(),
            }),
        }
    }

    fn ior(&self, form: Form, access: Access, rank: u32) -> IorOrder {
        let next = || ReadOrder::Next(STRIDE).whose(rank, self.limits.processes, self.to_next_machine);
        let is_read = access == Access::Read;
        IorOrder {
            access: if is_read && self.options.checks { Access::Check } else { access },
            layout: self.limits.layout(form, &self.top),
            rank: if is_read { next() } else { rank },
            seed: self.seed,
            transfers: self.transfers[form as usize],
            is_direct: self.options.is_direct && form == Form::Easy,
            fsync: true,
            fsync_per_write: false,
            waits_between: true,
            deadline_ns: (access == Access::Write).then(|| self.stonewall_ns()),
            wears_out: true,
            quits: false,
        }
    }

    fn mdtest(&self, form: Form, operation: Operation, rank: u32) -> MdtestOrder {
        let (folder, bytes) = match form {
            Form::Easy => (FOLDERS[2], 0),
            Form::Hard => (FOLDERS[3], WANTED_BYTES),
        };
        MdtestOrder {
            operation,
            tree: self.limits.tree(form, self.files[form as usize]),
            top: self.top.join(folder),
            rank: operation.whose(rank, STRIDE, self.limits.processes),
            is_renamed: false,
            write_bytes: bytes,
            read_bytes: bytes,
            fsync: false,
            checks: self.options.checks,
            seed: self.seed,
            order: None,
            deadline_ns: (operation == Operation::FileCreation).then(|| self.stonewall_ns()),
        }
    }

    fn stonewall_ns(&self) -> u64 {
        u64::try_from(self.options.stonewall.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::conduct::tests::options;
    use super::super::phase::Io500Phase;
    use super::*;
    use crate::suites::space::Room;

    fn orders(options: &Io500Options) -> Orders<'_> {
        let room = Room { bytes: 64 << 30, inodes: None };
        Orders {
            options,
            limits: Io500Limits::new(options, 3, room).expect("there is room"),
            top: "/top".into(),
            seed: 5,
            to_next_machine: 1,
            transfers: [7, 8],
            files: [9, 10],
        }
    }

    #[test]
    fn writes_end_at_the_stonewall_and_the_rest_is_of_what_was_written() {
        let options = options();
        let orders = orders(&options);
        for phase in Io500Phase::ALL {
            let (deadline, amount) = match orders.order(phase.task(), 0) {
                Order::Ior(order) => (order.deadline_ns, order.transfers),
                Order::Mdtest(order) => (order.deadline_ns, order.tree.items),
                _ => continue,
            };
            assert_eq!(deadline, phase.is_write().then_some(30_000_000_000), "{phase:?}");
            let written = if phase.name().starts_with("ior") { orders.transfers } else { orders.files };
            assert_eq!(amount, written[usize::from(phase.name().contains("hard"))], "{phase:?}");
        }
    }

    #[test]
    fn what_a_rank_reads_another_one_has_written() {
        let options = options();
        let orders = orders(&options);
        let whose = |phase: Io500Phase| match orders.order(phase.task(), 2) {
            Order::Ior(order) => order.rank,
            Order::Mdtest(order) => order.rank,
            other => panic!("{other:?}"),
        };
        assert_eq!([Io500Phase::IorEasyWrite, Io500Phase::IorHardRead].map(whose), [2, 0]);
        assert_eq!([Io500Phase::MdtestHardStat, Io500Phase::MdtestHardRead].map(whose), [0, 1]);
        let Order::Ior(read) = orders.order(Io500Phase::IorEasyRead.task(), 0) else { panic!("it is IOR") };
        assert_eq!(read.access, Access::Check, "what is read is compared");
    }
}
