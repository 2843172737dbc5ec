//! The phases of IO500: their names, their order, what each does, and what it is measured in.

use crate::suites::ior::Access;
use crate::suites::mdtest::Operation;
use serde::{Deserialize, Serialize};

/// A phase, named as IO500 names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Io500Phase {
    /// Each process writes a file of its own, in large transfers.
    IorEasyWrite,
    /// Each process makes empty files in a folder of its own.
    MdtestEasyWrite,
    /// A file is made: what is written from then on is newer. It is not measured.
    Timestamp,
    /// All processes write one file together, in transfers of 47,008 bytes by turns.
    IorHardWrite,
    /// All processes make files of 3,901 bytes in one folder.
    MdtestHardWrite,
    /// Files are searched by name, size and time.
    Find,
    /// Each process reads the file of another one.
    IorEasyRead,
    /// The attributes of empty files are asked for.
    MdtestEasyStat,
    /// All processes read the file that they wrote together.
    IorHardRead,
    /// The attributes of the files in one folder are asked for.
    MdtestHardStat,
    /// The empty files are removed.
    MdtestEasyDelete,
    /// The files in one folder are read.
    MdtestHardRead,
    /// They are removed.
    MdtestHardDelete,
}

/// What a phase is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// GiB (2^30 bytes) per second.
    #[serde(rename = "GiB/s")]
    Bandwidth,
    /// Thousands of operations per second.
    #[serde(rename = "kIOPS")]
    Operations,
}

/// The two forms of IOR and mdtest: easy suits a file system, hard does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Easy,
    Hard,
}

/// What ranks do in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Ior(Form, Access),
    Mdtest(Form, Operation),
    /// Nothing: the conductor makes the file.
    Timestamp,
    Find,
}

impl Io500Phase {
    /// All of them, in their order.
    pub const ALL: [Io500Phase; 13] = [
        Io500Phase::IorEasyWrite,
        Io500Phase::MdtestEasyWrite,
        Io500Phase::Timestamp,
        Io500Phase::IorHardWrite,
        Io500Phase::MdtestHardWrite,
        Io500Phase::Find,
        Io500Phase::IorEasyRead,
        Io500Phase::MdtestEasyStat,
        Io500Phase::IorHardRead,
        Io500Phase::MdtestHardStat,
        Io500Phase::MdtestEasyDelete,
        Io500Phase::MdtestHardRead,
        Io500Phase::MdtestHardDelete,
    ];

    /// Its name, in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Io500Phase::IorEasyWrite => "ior-easy-write",
            Io500Phase::MdtestEasyWrite => "mdtest-easy-write",
            Io500Phase::Timestamp => "timestamp",
            Io500Phase::IorHardWrite => "ior-hard-write",
            Io500Phase::MdtestHardWrite => "mdtest-hard-write",
            Io500Phase::Find => "find",
            Io500Phase::IorEasyRead => "ior-easy-read",
            Io500Phase::MdtestEasyStat => "mdtest-easy-stat",
            Io500Phase::IorHardRead => "ior-hard-read",
            Io500Phase::MdtestHardStat => "mdtest-hard-stat",
            Io500Phase::MdtestEasyDelete => "mdtest-easy-delete",
            Io500Phase::MdtestHardRead => "mdtest-hard-read",
            Io500Phase::MdtestHardDelete => "mdtest-hard-delete",
        }
    }

    pub(super) fn task(self) -> Task {
        match self {
            Io500Phase::IorEasyWrite => Task::Ior(Form::Easy, Access::Write),
            Io500Phase::MdtestEasyWrite => Task::Mdtest(Form::Easy, Operation::FileCreation),
            Io500Phase::Timestamp => Task::Timestamp,
            Io500Phase::IorHardWrite => Task::Ior(Form::Hard, Access::Write),
            Io500Phase::MdtestHardWrite => Task::Mdtest(Form::Hard, Operation::FileCreation),
            Io500Phase::Find => Task::Find,
            Io500Phase::IorEasyRead => Task::Ior(Form::Easy, Access::Read),
            Io500Phase::MdtestEasyStat => Task::Mdtest(Form::Easy, Operation::FileStat),
            Io500Phase::IorHardRead => Task::Ior(Form::Hard, Access::Read),
            Io500Phase::MdtestHardStat => Task::Mdtest(Form::Hard, Operation::FileStat),
            Io500Phase::MdtestEasyDelete => Task::Mdtest(Form::Easy, Operation::FileRemoval),
            Io500Phase::MdtestHardRead => Task::Mdtest(Form::Hard, Operation::FileRead),
            Io500Phase::MdtestHardDelete => Task::Mdtest(Form::Hard, Operation::FileRemoval),
        }
    }

    /// What it is measured in; none if it is not.
    pub fn measure(self) -> Option<Measure> {
        match self.task() {
            Task::Ior(..) => Some(Measure::Bandwidth),
            Task::Mdtest(..) | Task::Find => Some(Measure::Operations),
            Task::Timestamp => None,
        }
    }

    /// Whether it goes on until the stonewall.
    pub(super) fn is_write(self) -> bool {
        matches!(self.task(), Task::Ior(_, Access::Write) | Task::Mdtest(_, Operation::FileCreation))
    }

    /// Whether what it reads can be compared with what was written.
    pub(super) fn is_compared(self) -> bool {
        matches!(self.task(), Task::Ior(_, Access::Read) | Task::Mdtest(_, Operation::FileRead))
    }
}

impl Measure {
    /// The unit, in words.
    pub fn unit(self) -> &'static str {
        match self {
            Measure::Bandwidth => "GiB/s",
            Measure::Operations => "kIOPS",
        }
    }

    /// A rate in this unit: bytes or operations over seconds; 0 if there was no time.
    pub(super) fn rate(self, bytes: u64, operations: u64, seconds: f64) -> f64 {
        let amount = match self {
            Measure::Bandwidth => bytes as f64 / (1_u64 << 30) as f64,
            Measure::Operations => operations as f64 / 1000.0,
        };
        if seconds > 0.0 { amount / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_phases_are_of_bytes_and_eight_of_names_and_four_are_writes() {
        let all = Io500Phase::ALL;
        let of = |measure| all.iter().filter(|phase| phase.measure() == measure).count();
        assert_eq!([Some(Measure::Bandwidth), Some(Measure::Operations), None].map(of), [4, 8, 1]);
        assert_eq!(all.iter().filter(|phase| phase.is_write()).count(), 4);
    }

    #[test]
    fn names_are_the_same_in_tables_and_json() {
        for phase in Io500Phase::ALL {
            let json = serde_json::to_string(&phase).expect("it serialises");
            assert_eq!(json, format!("\"{}\"", phase.name()));
        }
    }

    #[test]
    fn rates_are_in_their_units() {
        assert_eq!(Measure::Bandwidth.rate(3 << 30, 7, 2.0), 1.5);
        assert_eq!(Measure::Operations.rate(3 << 30, 7000, 2.0), 3.5);
        assert_eq!(Measure::Operations.rate(0, 7000, 0.0), 0.0);
    }
}
