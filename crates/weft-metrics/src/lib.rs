//! Face: metrics for Prometheus, and what a process has used.
//!
//! It owns the metrics' names, their text form (OpenMetrics 1.0, by `prometheus-client`), the HTTP server that hands
//! it out, and reading `/proc`. It never counts anything: pages are made from what targets and managers say of
//! themselves when somebody asks.

mod export;
mod family;
mod manager;
mod node;
mod page;
mod process;
mod server;

pub use export::{ExportConnections, server_page};
pub use family::reference;
pub use manager::{ManagerView, manager_page};
pub use node::{TargetPage, node_page};
pub use process::process_load;
pub use server::{CONTENT_TYPE, serve};
