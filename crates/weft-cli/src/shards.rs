//! `weft fs check|clients|inspect`: what the shards of a file system hold, and who uses them.

use crate::connection::Connection;
use crate::error::CliError;
use crate::files::attached;
use crate::locate::FabricPlace;
use crate::output::{Output, note, table_or_note};
use crate::paint::{Paint, Tone};
use crate::progress::Count;
use crate::span::{span, span_ms};
use crate::table::{Cell, Table, row};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, SessionInfo, TroubleKind};
use weft_client::AttachMode;
use weft_fs::{DataCheck, FsError, Mount};
use weft_rt::sync::join_all;
use weft_types::SessionId;
use weft_wire::files::{HoldMode, ShardState, TableCheck, UseOfShard};

/// What can be asked of the shards of a file system
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ShardsCommand {
    /// Check that names, inodes, and the data of files agree
    ///
    /// Each shard compares, beside what it serves, all that is in its tables: entries of directories with the
    /// inodes that they name, numbers of links and of entries, parents, targets, extended attributes, locks,
    /// what mounts hold, and inodes without a name that wait to be purged. Then what each group holds is
    /// compared with the inodes: whether data belong to a file that is there, into that group, and before the
    /// end of what the file has reserved. It changes nothing. Whether the copies of the data agree is what
    /// `weft scrub` compares.
    #[command(after_long_help = "Examples:\n  weft fs check home\n  \
        weft fs check home --json | jq '.findings'\n\n\
        It ends with 1 if something is wrong.")]
    Check {
        /// The file system's name
        name: String,
    },
    /// List the mounts of a file system: what they hold, and who waits for whom
    ///
    /// OPEN counts inodes that a mount has open and has given back for others, READ and WRITE those that it
    /// may use without asking, LOCKS those of its programs, ASKED what it was asked to give back and has not
    /// yet. `all names` under HOLDS stands for a mount that is alone.
    #[command(after_long_help = "Examples:\n  weft fs clients home\n  \
        weft fs clients home --json | jq '.waits'\n\n\
        To find the file of an inode: find /mnt/home -inum NUMBER")]
    Clients {
        /// The file system's name
        name: String,
    },
    /// Show what the shards are made of and what they have done: tables, log, tree, counters
    #[command(after_long_help = "Examples:\n  weft fs inspect home\n  \
        weft fs inspect home --shard 0 --json")]
    Inspect {
        /// The file system's name
        name: String,
        /// Only this shard, with all that is known of it
        #[arg(long, value_name = "N")]
        shard: Option<u16>,
    },
}

/// After so many milliseconds of a wait, the command says what to do.
const LONG_WAIT_MS: u64 = 10_000;

pub(crate) async fn run(place: &FabricPlace, command: ShardsCommand, output: Output) -> Result<(), CliError> {
    match command {
        ShardsCommand::Check { name } => check(place, &name, output).await,
        ShardsCommand::Clients { name } => clients(place, &name, output).await,
        ShardsCommand::Inspect { name, shard } => inspect(place, &name, shard, output).await,
    }
}

/// A check of a file system, for programs.
#[derive(Serialize)]
struct Checked {
    file_system: String,
    sound: bool,
    shards: usize,
    inodes: u64,
    names: u64,
    /// Inodes without a name that wait to be purged.
    orphans: u64,
    /// Inodes that changed all the time: their names were not compared.
    unsettled: u64,
    /// Groups whose data were compared with the inodes.
    groups: usize,
    found: u64,
    findings: Vec<Finding>,
    /// Shards that no server can open: they were not checked, nor were data.
    unopened: Vec<Unopened>,
}

/// A shard that its server cannot open, for programs.
#[derive(Clone, Serialize)]
pub(crate) struct Unopened {
    shard: u16,
    why: String,
}

/// The shards of a file system that their servers cannot open. A shard that has no server yet does not
/// count: it answers a little later.
pub(crate) async fn unopened(place: &FabricPlace, name: &str) -> Result<Vec<Unopened>, CliError> {
    let connection = Connection::open(place).await?;
    let ApiAnswer::Status(status) = connection.ask(&ApiRequest::Status {}).await? else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    let troubles = status.troubles.into_iter().filter(|trouble| trouble.kind == TroubleKind::ShardUnserved);
    let shards = troubles.filter_map(|trouble| {
        let volume = trouble.volumes.first()?.volume.strip_prefix(name)?.strip_prefix(':')?;
        Some(Unopened { shard: volume.parse().ok()?, why: trouble.what })
    });
    Ok(shards.collect())
}

/// Something that is wrong, for programs.
#[derive(Serialize)]
struct Finding {
    shard: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    finding: String,
}

async fn check(place: &FabricPlace, name: &str, output: Output) -> Result<(), CliError> {
    let unopened = unopened(place, name).await?;
    let (tables, data) = attached((place, name, AttachMode::ReadOnly), async |mount| {
        let bar = Count::new("checking", 1);
        let stands = |shard: u16, check: &TableCheck, is_it: bool| {
            let whose = if is_it { "" } else { ", another check comes first" };
            bar.set_of(check.read, check.items, &format!("items of shard {shard}{whose}"));
        };
        let shards: Vec<u16> = opened(mount, &unopened).collect();
        let checks = mount.check_names(&shards, stands).await?;
        if !unopened.is_empty() {
            return Ok((checks, Ok(DataCheck::default())));
        }
        let compared =
            |data: &DataCheck| bar.set_of(data.compared as u64, data.groups as u64, "groups with data");
        Ok((checks, mount.check_data(compared).await))
    })
    .await?;
    let checks = &tables.shards;
    let sum = |count: fn(&TableCheck) -> u64| checks.iter().map(|(_, check)| count(check)).sum::<u64>();
    let findings = checks.iter().flat_map(|(shard, check)| {
        check.findings.iter().map(|finding| Finding {
            shard: *shard,
            inode: Some(finding.inode.0).filter(|inode| *inode > 0),
            finding: finding.text.clone(),
        })
    });
    // What was found in the tables is told, whatever becomes of the data.
    let (data, failed) = match data {
        Ok(data) => (data, None),
        Err(error) => (DataCheck::default(), Some(error)),
    };
    let across = tables.findings.iter().map(|finding| Finding {
        shard: finding.inode.shard(),
        inode: Some(finding.inode.0),
        finding: finding.text.clone(),
    });
    let of_data = data.findings.into_iter().map(|finding| Finding {
        shard: finding.inode.shard(),
        inode: Some(finding.inode.0),
        finding: finding.text,
    });
    let found = sum(|check| check.found) + tables.found + data.found;
    let checked = Checked {
        file_system: name.to_owned(),
        sound: found == 0 && unopened.is_empty(),
        shards: checks.len(),
        inodes: sum(|check| check.inodes),
        names: sum(|check| check.names),
        orphans: sum(|check| check.orphans),
        unsettled: sum(|check| check.unsettled) + tables.unsettled,
        groups: data.groups,
        found,
        findings: findings.chain(across).chain(of_data).collect(),
        unopened,
    };
    output.show(&checked, checked_in_words)?;
    match (checked.sound, failed) {
        (true, None) => Ok(()),
        (true, Some(error)) => Err(error.into()),
        (false, _) => Err(unsound(&checked)),
    }
}

/// How a check ends that has found something, or has not looked at everything.
fn unsound(checked: &Checked) -> CliError {
    let name = &checked.file_system;
    let found = format!("{} contradictions were found", checked.found);
    let unopened: Vec<String> = checked.unopened.iter().map(|lost| lost.shard.to_string()).collect();
    let kept = "keep what `weft fabric support-bundle` collects, and copy what you need out of it with \
                `weft fs get`";
    match unopened.as_slice() {
        [] => CliError::Failed {
            message: format!("file system '{name}' is not sound: {found}"),
            hint: format!("nothing was changed; {kept}"),
        },
        shards => CliError::Failed {
            message: format!(
                "file system '{name}' cannot be checked as a whole: shards that cannot be opened: {}; in the \
                 others, {found}",
                shards.join(", ")
            ),
            hint: format!("`weft status` says what may bring them back; {kept}"),
        },
    }
}

/// The shards that their servers can open.
pub(crate) fn opened(mount: &Mount, unopened: &[Unopened]) -> impl Iterator<Item = u16> {
    (0..mount.shards()).filter(|shard| unopened.iter().all(|lost| lost.shard != *shard))
}

pub(crate) fn unopened_in_words(shards: &[Unopened], paint: Paint) -> String {
    let word = paint.text(Tone::Bad, "fault:");
    shards.iter().map(|lost| format!("{word} {}\n", lost.why)).collect()
}

fn checked_in_words(checked: &Checked, paint: Paint) -> String {
    let mut text = unopened_in_words(&checked.unopened, paint);
    for finding in &checked.findings {
        let word = paint.text(Tone::Bad, "fault:");
        text.push_str(&format!("{word} shard {}: {}\n", finding.shard, finding.finding));
    }
    if checked.found > checked.findings.len() as u64 {
        text.push_str(&format!("and {} more\n", checked.found - checked.findings.len() as u64));
    }
    let verdict = match checked.sound {
        true => paint.text(Tone::Good, "sound"),
        false => paint.text(Tone::Bad, "not sound"),
    };
    let waiting = match checked.orphans {
        0 => String::new(),
        n => format!(", {n} removed files wait to be purged"),
    };
    let unsettled = match checked.unsettled {
        0 => String::new(),
        n => format!(", {n} changed all the time and were not compared"),
    };
    let data = match checked.unopened.is_empty() {
        true => format!("data in {} groups", checked.groups),
        false => "data were not compared".into(),
    };
    text.push_str(&format!(
        "{verdict}: {} names, {} inodes in {} shards, {data}{waiting}{unsettled}\n",
        checked.names, checked.inodes, checked.shards
    ));
    text
}

/// The mounts of a file system, for programs.
#[derive(Serialize)]
struct Clients {
    file_system: String,
    clients: Vec<Client>,
    waits: Vec<Wait>,
    /// Shards that no server can open: what mounts hold there is not counted.
    unopened: Vec<Unopened>,
}

/// A session on a file system, for programs.
#[derive(Serialize)]
struct Client {
    #[serde(flatten)]
    session: SessionInfo,
    open: u64,
    readable: u64,
    writable: u64,
    locks: u64,
    has_all_names: bool,
    asked: u64,
}

/// One session that waits for another, for programs.
#[derive(Serialize)]
struct Wait {
    session: SessionId,
    waits_for: SessionId,
    shard: u16,
    inode: u64,
    /// `lock`; `word`: the other one writes, and is to tell size and times; `hold`: it is to give back what
    /// it holds.
    wants: &'static str,
    waited_ms: u64,
}

async fn clients(place: &FabricPlace, name: &str, output: Output) -> Result<(), CliError> {
    let connection = Connection::open(place).await?;
    let unopened = unopened(place, name).await?;
    let (own, uses) = attached((place, name, AttachMode::ReadOnly), async |mount| {
        let asked = opened(mount, &unopened).map(async |shard| Ok((shard, mount.use_of_shard(shard).await?)));
        let uses = join_all(asked).await.into_iter().collect::<Result<Vec<(u16, UseOfShard)>, FsError>>()?;
        Ok((mount.session_id(), uses))
    })
    .await?;
    let listed = connection.ask(&ApiRequest::SessionList { volume: Some(name.to_owned()) }).await?;
    let ApiAnswer::Sessions { sessions } = listed else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    let sessions = sessions.into_iter().filter(|session| session.id != own);
    let mut clients: BTreeMap<SessionId, Client> = sessions.map(|s| (s.id, client(s))).collect();
    for user in uses.iter().flat_map(|(_, used)| &used.users) {
        let Some(client) = clients.get_mut(&user.session) else { continue };
        client.open += user.open;
        client.readable += user.read;
        client.writable += user.write;
        client.locks += user.locks;
        client.asked += user.asked;
        client.has_all_names |= user.has_all_names;
    }
    let waits = uses.iter().flat_map(|(shard, used)| {
        used.waits.iter().map(|wait| Wait {
            session: wait.session,
            waits_for: wait.holder,
            shard: *shard,
            inode: wait.inode.0,
            wants: match wait.keeps {
                None => "lock",
                Some(HoldMode::Write) => "word",
                Some(HoldMode::Open | HoldMode::Read | HoldMode::Shared) => "hold",
            },
            waited_ms: wait.waited_ms,
        })
    });
    let waits = waits.collect();
    let clients = clients.into_values().collect();
    let found = Clients { file_system: name.to_owned(), clients, waits, unopened };
    output.show(&found, clients_in_words)
}

fn client(session: SessionInfo) -> Client {
    Client { session, open: 0, readable: 0, writable: 0, locks: 0, has_all_names: false, asked: 0 }
}

fn clients_in_words(found: &Clients, paint: Paint) -> String {
    let mut table = Table::new(&[
        "SESSION",
        "CLIENT",
        "MODE",
        "LAST HEARD",
        ">OPEN",
        ">READ",
        ">WRITE",
        ">LOCKS",
        ">ASKED",
        "HOLDS",
    ]);
    for client in &found.clients {
        let session = &client.session;
        let heard = session.idle_ms.map_or_else(|| "over".into(), |ms| format!("{} ago", span_ms(ms)));
        let asked = match client.asked {
            0 => Cell::from("0"),
            n => Cell::new(n.to_string(), Tone::Warning),
        };
        table.row(row![
            &session.id,
            session.client.as_str(),
            &session.mode,
            heard,
            &client.open,
            &client.readable,
            &client.writable,
            &client.locks,
            asked,
            if client.has_all_names { "all names" } else { "" }
        ]);
    }
    let mut text = table_or_note(&table, paint, "nobody has mounted it");
    text.push_str(&unopened_in_words(&found.unopened, paint));
    if !found.waits.is_empty() {
        text.push_str(&format!("\n{}", waits_table(&found.waits).render(paint)));
    }
    if let Some(wait) = found.waits.iter().find(|w| w.waited_ms >= LONG_WAIT_MS && w.wants != "lock") {
        note(&format!(
            "{} does not give back what {} waits for: a mount that is gone is ended by itself, and \
             `weft session end {}` ends it at once",
            wait.waits_for, wait.session, wait.waits_for
        ));
    }
    text
}

fn waits_table(waits: &[Wait]) -> Table {
    let mut table = Table::new(&["WAITS", "FOR", ">INODE", "WANTS", ">SINCE"]);
    for wait in waits {
        let what = match wait.wants {
            "lock" => "its lock",
            "word" => "its size and times",
            _ => "what it holds",
        };
        table.row(row![&wait.session, &wait.waits_for, &wait.inode, what, span_ms(wait.waited_ms)]);
    }
    table
}

/// What shards are, for programs.
#[derive(Serialize)]
struct Inspected {
    file_system: String,
    shards: Vec<Shard>,
    unopened: Vec<Unopened>,
}

/// What a shard is, for programs.
#[derive(Serialize)]
struct Shard {
    shard: u16,
    format: u16,
    checkpoint: u64,
    generation: u64,
    served_ms: u64,
    log: Log,
    tree: Tree,
    /// Items by table.
    tables: BTreeMap<String, u64>,
    operations: u64,
    probes: u64,
    checkpoints: u64,
}

/// The log of a shard, for programs.
#[derive(Serialize)]
struct Log {
    blocks: u32,
    /// Blocks that a server would replay.
    used: u64,
    first: u64,
    next: u64,
    batches: u64,
    appended_blocks: u64,
    change_bytes: u64,
}

/// The tree of a shard, for programs.
#[derive(Serialize)]
struct Tree {
    pages: u64,
    levels: u8,
}

/// Names of tables, by number.
const TABLES: [&str; 18] = [
    "shard",
    "sessions",
    "answers",
    "inodes",
    "parts",
    "entries",
    "targets",
    "xattrs",
    "orphans",
    "holds",
    "locks",
    "transactions",
    "committed",
    "prepared",
    "over",
    "quotas",
    "budgets",
    "room",
];

fn table_name(number: u8) -> String {
    let name = usize::from(number).checked_sub(1).and_then(|at| TABLES.get(at));
    name.map_or_else(|| format!("table {number}"), |name| (*name).to_owned())
}

fn shard(number: u16, state: &ShardState) -> Shard {
    Shard {
        shard: number,
        format: state.format,
        checkpoint: state.checkpoint,
        generation: state.generation,
        served_ms: state.served_ms,
        log: Log {
            blocks: state.log_blocks,
            used: state.log_next.saturating_sub(state.log_from),
            first: state.log_from,
            next: state.log_next,
            batches: state.batches,
            appended_blocks: state.appended_blocks,
            change_bytes: state.change_bytes,
        },
        tree: Tree { pages: state.pages, levels: state.levels },
        tables: state.tables.iter().map(|(table, items)| (table_name(*table), *items)).collect(),
        operations: state.operations,
        probes: state.probes,
        checkpoints: state.checkpoints,
    }
}

async fn inspect(place: &FabricPlace, name: &str, only: Option<u16>, output: Output) -> Result<(), CliError> {
    let mut unopened = unopened(place, name).await?;
    unopened.retain(|lost| only.is_none_or(|only| only == lost.shard));
    let shards = attached((place, name, AttachMode::ReadOnly), async |mount| {
        if let Some(only) = only.filter(|only| *only >= mount.shards()) {
            return Err(CliError::Usage {
                message: format!("file system '{name}' has no shard {only}"),
                hint: format!("its shards are 0 to {}", mount.shards() - 1),
            });
        }
        let wanted = opened(mount, &unopened).filter(|shard| only.is_none_or(|only| only == *shard));
        let asked = wanted.map(async |number| Ok(shard(number, &mount.state_of_shard(number).await?)));
        join_all(asked).await.into_iter().collect::<Result<Vec<Shard>, CliError>>()
    })
    .await?;
    let inspected = Inspected { file_system: name.to_owned(), shards, unopened };
    output.show(&inspected, |inspected, paint| {
        let lost = unopened_in_words(&inspected.unopened, paint);
        match (only, inspected.shards.as_slice()) {
            (Some(_), []) => lost,
            (Some(_), [shard]) => shard_in_words(shard, paint),
            (_, shards) => shards_in_words(shards, paint) + &lost,
        }
    })
}

fn shards_in_words(shards: &[Shard], paint: Paint) -> String {
    let mut table = Table::new(&[
        ">SHARD",
        ">INODES",
        ">ENTRIES",
        ">ORPHANS",
        ">LOG",
        ">PAGES",
        ">OPERATIONS",
        ">CHECKPOINT",
        "SERVED",
    ]);
    for shard in shards {
        let items = |table: &str| shard.tables.get(table).copied().unwrap_or(0);
        table.row(row![
            &shard.shard,
            &items("inodes"),
            &items("entries"),
            &items("orphans"),
            format!("{} of {}", shard.log.used, shard.log.blocks),
            &shard.tree.pages,
            &shard.operations,
            &shard.checkpoint,
            span(Duration::from_millis(shard.served_ms))
        ]);
    }
    table.render(paint)
}

fn shard_in_words(shard: &Shard, paint: Paint) -> String {
    let log = &shard.log;
    let mut lines = vec![
        ("shard", shard.shard.to_string()),
        ("format", shard.format.to_string()),
        ("generation", shard.generation.to_string()),
        ("served", span(Duration::from_millis(shard.served_ms))),
        ("log", format!("{} of {} blocks, from block {} to {}", log.used, log.blocks, log.first, log.next)),
        (
            "appended",
            format!("{} batches, {} blocks, {} bytes", log.batches, log.appended_blocks, log.change_bytes),
        ),
        ("tree", format!("{} pages in {} levels", shard.tree.pages, shard.tree.levels)),
        ("checkpoints", format!("{}, {} by this server", shard.checkpoint, shard.checkpoints)),
        ("operations", shard.operations.to_string()),
        ("probes", shard.probes.to_string()),
    ];
    lines.extend(shard.tables.iter().map(|(table, items)| (table.as_str(), items.to_string())));
    crate::output::fields(paint, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_told_in_words() {
        let mut checked = Checked {
            file_system: "home".into(),
            sound: true,
            shards: 16,
            inodes: 3,
            names: 4,
            orphans: 1,
            unsettled: 0,
            groups: 5,
            found: 0,
            findings: Vec::new(),
            unopened: Vec::new(),
        };
        assert_eq!(
            checked_in_words(&checked, Paint::off()),
            "sound: 4 names, 3 inodes in 16 shards, data in 5 groups, 1 removed files wait to be purged\n"
        );
        checked.sound = false;
        checked.found = 2;
        checked.findings = vec![Finding { shard: 3, inode: Some(7), finding: "inode 7 is odd".into() }];
        let told = checked_in_words(&checked, Paint::off());
        assert!(told.starts_with("fault: shard 3: inode 7 is odd\nand 1 more\nnot sound: "), "{told}");
        checked.unopened = vec![Unopened { shard: 0, why: "shard 0 is not served".into() }];
        let told = checked_in_words(&checked, Paint::off());
        assert!(told.starts_with("fault: shard 0 is not served\nfault: shard 3"), "{told}");
        assert!(told.contains("in 16 shards, data were not compared"), "{told}");
    }

    #[test]
    fn tables_have_names_and_those_to_come_numbers() {
        assert_eq!((table_name(4).as_str(), table_name(11).as_str()), ("inodes", "locks"));
        assert_eq!(table_name(19), "table 19");
    }
}
