//! Engine: serves the drives of a node.
//!
//! It owns the replica's side of the mirrored-write protocol: admission by epoch, lease, generation and session,
//! what an epoch's acknowledgement promises, vouching between peers while the manager is silent, resync of a
//! replica that comes back, and the sweep of sessions that are over. It never decides membership (the manager
//! does), never orders writes (versions do), and never touches a drive but through `weft-store`.
//!
//! The life of a request reads top to bottom in `serve.rs`; what a request must pass first is in `admit.rs`.

mod admit;
mod adopt;
mod clock;
mod command;
mod drive;
mod floor;
mod follow;
mod inventory;
mod last_word;
mod lease;
mod load;
mod member;
mod meter;
mod peer;
mod presence;
mod resync;
mod scrub;
mod serve;
mod source;
mod status;
mod sweep;
mod target;
mod tell;
mod throttle;
mod verify;
mod vouch;
mod watermark;

pub use lease::RENEWALS_PER_LEASE;
pub use load::ProcessProbe;
pub use target::{Target, TargetOptions, TargetThread};
