//! The page of a server of volumes.

use crate::family::{PROCESS, SERVER};
use crate::page::Page;
use weft_types::ProcessLoad;

/// Connections of clients to a volume that one thread of the server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportConnections {
    /// The volume's name.
    pub volume: String,
    /// The lane of the attach, and with it the thread; 0 is the first one.
    pub lane: usize,
    /// Open connections.
    pub connections: usize,
}

/// What a server of volumes says of itself, as text.
pub fn server_page(connections: &[ExportConnections], process: &ProcessLoad) -> String {
    let mut page = Page::new(&[SERVER, PROCESS], Vec::new());
    for ExportConnections { volume, lane, connections } in connections {
        page.number("server_connections", &[volume, &lane.to_string()], *connections as u64);
    }
    page.build();
    page.process(process);
    page.render()
}
