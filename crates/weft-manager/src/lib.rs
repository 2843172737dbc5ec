//! Engine: owns the fabric map.
//!
//! It owns the map's store, the targets' leases, the clients' sessions, and the loop that observes, decides
//! by the pure rules of `weft-membership`, commits, and tells everyone. It never carries data, never changes
//! the map but by a commit to the store, and never evicts a replica that could still serve (R11 in
//! docs/protocol.md).

mod actor;
mod attend;
mod backup;
mod capacity;
mod changed_in;
mod check;
mod commit;
mod convert;
mod copies;
mod describe;
mod durable;
mod embedded;
mod ended;
mod error;
mod evacuate;
mod event;
mod file_system;
mod floor;
mod fold;
mod follow;
mod index;
mod inventory;
mod join;
mod join_copies;
mod known;
mod lease;
mod led_store;
mod left_out;
mod load;
mod loss;
mod manager;
mod member;
mod observe;
mod operate;
mod process;
mod reach;
mod records;
mod recover;
mod scrub;
mod scrub_info;
mod serve;
mod session;
mod silence;
mod slices;
mod stall;
mod status;
mod store;
mod sweep;
mod trouble;
mod volume;
mod whole;

pub use embedded::EmbeddedStore;
pub use error::ManagerError;
pub use led_store::take_over;
pub use manager::{Manager, ManagerOptions, found};
pub use records::{load_journal, load_map, put_journal, put_map};
pub use recover::{RecoverError, Recovered, recover};
pub use store::{
    Entry, Hold, Journal, KeyStore, MemStore, Pending, Slowness, StoreError, Transaction, at_once,
};
