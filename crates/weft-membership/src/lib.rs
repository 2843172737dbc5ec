//! Pure: transitions of the fabric map.
//!
//! This crate owns every way in which a [`weft_types::FabricMap`] may change ([`Change`], [`apply`]), what must
//! hold in each map and between one and the next ([`check`], [`check_step`]), and what to do next about what was
//! observed ([`next_change`]). It never does I/O, never reads a clock, draws no random number, and commits nothing:
//! times and observations are passed in, and the manager commits the map that comes out.
//!
//! A change carries everything that was decided, down to the drives of a new group. So members that hold the map
//! before it can apply the change and hold the map after it, also where their code is of another release.

mod capacity;
mod change;
mod check;
mod delete;
mod demote;
mod diff;
mod drive;
mod evict;
mod file_set;
mod file_system;
mod floor;
mod group;
mod group_index;
mod loss;
mod name;
mod node;
mod observe;
mod plan;
mod pool;
mod promote;
mod reach;
mod reason;
mod rebuild;
mod refusal;
mod rejoin;
mod relocate;
mod replace;
mod resize;
mod room;
mod scrub;
mod session;
mod settings;
mod shard_server;
mod size;
mod span;
mod target;
mod volume;

pub use capacity::free_blocks;
pub use change::{Change, apply};
pub use check::{Violation, check, check_changed, check_step};
pub use delete::{BeginDelete, FinishDelete};
pub use demote::{Demote, Depart};
pub use diff::diff;
pub use drive::{AddDrive, DrainDrive, FailDrive, RemoveDrive, RestoreDrive, SetDevice};
pub use evict::{Acknowledged, Evict};
pub use file_set::{AddFileSet, plan_file_set};
pub use file_system::{
    CreateFileSystem, FileSystemRequest, SHARDS_DEFAULT, SYSTEM_VOLUME_BLOCKS, plan_file_system,
};
pub use floor::{GroupFloor, RaiseFloors};
pub use group_index::GroupIndex;
pub use loss::{AcceptLoss, HeldCopy, Survivor, best_copy, lost_groups};
pub use name::{NameFault, validate_name};
pub use node::{JoinNode, RemoveNode};
pub use observe::{DriveFault, DriveObservation, Observations, TargetObservation};
pub use plan::{
    Intent, domain_of, has_spare_drive, intents, next_change, next_demotion, next_departure, next_drain,
    next_eviction, next_failure, next_promotion, next_rebuild, next_rebuild_on_one_node, next_rejoin,
    next_release, next_relocation, next_step_of_relocation, plan_evacuation,
};
pub use pool::CreatePool;
pub use promote::Promote;
pub use reach::{Cut, Kept, Reach, ReachReport};
pub use reason::{Reason, SkipCause, Skipped};
pub use rebuild::Rebuild;
pub use refusal::{Kind, Refusal};
pub use rejoin::Rejoin;
pub use relocate::{BeginRelocation, CancelRelocation, FinishRelocation, HandOver, KeepMember};
pub use replace::Replace;
pub use resize::{GrowVolume, ResizeRequest, plan_resize};
pub use room::{Room, nearly_full};
pub use scrub::{
    NoteScrubs, SCRUB_REST_MS, ScheduleScrub, StopScrub, WantScrub, due_for_scrub, next_scrub_ms,
};
pub use session::{CloseSession, OpenSession, SweepSession, exclusive_over};
pub use settings::{ChangeSettings, REBUILD_AFTER_MS};
pub use shard_server::{NameServers, next_servers};
pub use size::Size;
pub use span::SpanPlan;
pub use target::{AddTarget, AssignDrive, MoveTarget, RemoveTarget};
pub use volume::{CreateVolume, NewGroup, VOLUME_BLOCKS_MAX, VolumeRequest, plan_volume};
