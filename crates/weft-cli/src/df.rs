//! `weft fs df`: what file systems have used, and what is left for them.

use crate::connection::Connection;
use crate::error::CliError;
use crate::output::{Output, table_or_note};
use crate::size::Size;
use crate::table::{Table, row};
use serde::Serialize;
use weft_api::{ApiAnswer, ApiRequest, DriveInfo, FileSystemInfo, PoolInfo};

/// Arguments of `weft fs df`.
#[derive(Clone, Debug, clap::Args)]
pub struct FsSpaceArgs {
    /// Only this file system
    pub name: Option<String>,
    /// Also each drive of their pools
    #[arg(long)]
    pub drives: bool,
}

/// Space of file systems, for programs.
#[derive(Serialize)]
struct Spaces {
    file_systems: Vec<Space>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    drives: Vec<DriveSpace>,
}

/// Space of a file system, for programs. Bytes as files count them: copies are divided out.
#[derive(Serialize)]
struct Space {
    file_system: String,
    pool: String,
    copies: u8,
    size_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    used_percent: u64,
}

/// Space of a drive, for programs.
#[derive(Serialize)]
struct DriveSpace {
    pool: String,
    node: String,
    path: String,
    size_bytes: u64,
    used_bytes: Option<u64>,
    used_percent: Option<u64>,
}

pub(crate) async fn df(connection: &Connection, args: &FsSpaceArgs, output: Output) -> Result<(), CliError> {
    let file_systems = match &args.name {
        Some(name) => match connection.ask(&ApiRequest::FsShow { name: name.clone() }).await? {
            ApiAnswer::FileSystem { file_system, .. } => vec![file_system],
            _ => return Err(CliError::wrong_answer(connection.at())),
        },
        None => match connection.ask(&ApiRequest::FsList {}).await? {
            ApiAnswer::FileSystems { file_systems } => file_systems,
            _ => return Err(CliError::wrong_answer(connection.at())),
        },
    };
    let ApiAnswer::Pools { pools } = connection.ask(&ApiRequest::PoolList {}).await? else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    let spaces: Vec<Space> = file_systems.iter().filter_map(|listed| space(listed, &pools)).collect();
    let drives = match args.drives {
        true => match connection.ask(&ApiRequest::DriveList {}).await? {
            ApiAnswer::Drives { drives, .. } => drives,
            _ => return Err(CliError::wrong_answer(connection.at())),
        },
        false => Vec::new(),
    };
    let is_used = |drive: &&DriveInfo| spaces.iter().any(|space| space.pool == drive.pool);
    let drives = drives.iter().filter(is_used).map(drive_space).collect();
    let spaces = Spaces { file_systems: spaces, drives };
    output.show(&spaces, |spaces, paint| {
        let empty = "there are no file systems yet: `weft fs create` makes one";
        let mut text = table_or_note(&table(&spaces.file_systems), paint, empty);
        if !spaces.drives.is_empty() {
            text.push_str(&format!("\n{}", drives_table(&spaces.drives).render(paint)));
        }
        text
    })
}

/// What a file system can hold: a pool's space by the number of its copies. It shares it with whatever else
/// is in the pool.
fn space(listed: &FileSystemInfo, pools: &[PoolInfo]) -> Option<Space> {
    let pool = pools.iter().find(|pool| pool.name == listed.pool)?;
    let copies = u64::from(listed.copies).max(1);
    let (size, used) = (pool.raw_bytes / copies, pool.used_bytes / copies);
    Some(Space {
        file_system: listed.name.clone(),
        pool: pool.name.clone(),
        copies: listed.copies,
        size_bytes: size,
        used_bytes: used,
        free_bytes: size.saturating_sub(used),
        used_percent: percent(used, size),
    })
}

fn drive_space(drive: &DriveInfo) -> DriveSpace {
    let used = drive.usage.as_ref().map(|usage| usage.used_bytes);
    DriveSpace {
        pool: drive.pool.clone(),
        node: drive.node.clone(),
        path: drive.path.clone(),
        size_bytes: drive.capacity_bytes,
        used_bytes: used,
        used_percent: used.map(|used| percent(used, drive.capacity_bytes)),
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100).div_ceil(u128::from(whole.max(1))) as u64
}

fn table(spaces: &[Space]) -> Table {
    let mut table = Table::new(&["FILE SYSTEM", ">COPIES", ">SIZE", ">USED", ">FREE", ">USE", "POOL"]);
    for space in spaces {
        table.row(row![
            space.file_system.as_str(),
            &space.copies,
            &Size(space.size_bytes),
            &Size(space.used_bytes),
            &Size(space.free_bytes),
            format!("{}%", space.used_percent),
            space.pool.as_str()
        ]);
    }
    table
}

fn drives_table(drives: &[DriveSpace]) -> Table {
    let mut table = Table::new(&["POOL", "NODE", ">SIZE", ">USED", ">USE", "DRIVE"]);
    for drive in drives {
        let used = drive.used_bytes.map_or_else(|| "-".to_owned(), |used| Size(used).to_string());
        let percent = drive.used_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%"));
        table.row(row![
            drive.pool.as_str(),
            drive.node.as_str(),
            &Size(drive.size_bytes),
            used,
            percent,
            drive.path.as_str()
        ]);
    }
    table
}
