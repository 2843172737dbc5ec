//! `weft fs quota set|show|report`: how much space and how many inodes users, groups, projects and
//! directories may use.

use crate::error::CliError;
use crate::files::{attached, text};
use crate::locate::FabricPlace;
use crate::output::{Output, fields, table_or_note};
use crate::paint::{Paint, Tone};
use crate::project;
use crate::size::Size;
use crate::table::{Cell, Table, row};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;
use uzers::{get_group_by_gid, get_group_by_name, get_user_by_name, get_user_by_uid};
use weft_client::AttachMode;
use weft_fs::{Mount, QuotaReport};
use weft_types::{FileKind, InodeNumber};
use weft_wire::files::{QuotaAmount, QuotaKind, QuotaOf};

/// From this part of a limit on, in percent, a user is shown as one who comes near it.
const NEAR_PERCENT: u64 = 90;

/// What can be done with quotas
#[derive(Clone, Debug, clap::Subcommand)]
pub enum QuotaCommand {
    /// Limit what a user, a group, a project or a directory may use
    ///
    /// A file or directory counts for its owner, for its group, and for its project if it has one. Bytes
    /// are those of files up to their ends, in blocks of 4 KiB: holes count, copies do not. What mounts
    /// have asked for ahead counts as long as a file is open to write. Who has used up a limit gets "Disk
    /// quota exceeded" (EDQUOT) for what would use more; reading, overwriting, removing and cutting off
    /// go on. A limit below what is used already removes nothing. Limits hold for programs of root, too:
    /// they go by whose the files are.
    ///
    /// The limit holds in all shards when the command returns. If it is interrupted or a shard does not
    /// answer, run it again.
    ///
    /// With --directory all that is in a directory is limited together, whatever owners it has. The
    /// directory becomes a project with a number of its own, unless it is one already: all that is in it is
    /// given to the project one by one, and what is made later belongs to it. A directory in it that has a
    /// limit of its own counts for that only. Files are moved into or out of it by copying, as `mv` does by
    /// itself.
    ///
    /// All nodes have to run a release that knows quotas. A node of a release before that does not serve a
    /// file system that has some.
    #[command(after_long_help = "Examples:\n  weft fs quota set home --user alice --bytes 100GiB\n  \
        weft fs quota set home --group physics --bytes 20TiB --inodes 5000000\n  \
        weft fs quota set home --directory /projects/climate --bytes 50TiB\n  \
        weft fs quota set home --user 1007 --bytes none")]
    Set(QuotaSetArgs),
    /// Show what a user, a group, a project or a directory uses, and may use
    #[command(after_long_help = "Examples:\n  weft fs quota show home --user alice\n  \
        weft fs quota show home --directory /projects/climate\n  \
        weft fs quota show home --group physics --json | jq .used_bytes")]
    Show {
        /// The file system's name
        name: String,
        /// Whose
        #[command(flatten)]
        whose: Whose,
    },
    /// Show what all users, groups and projects use, and may use
    ///
    /// The shards count this as files come and go: no directory is walked.
    #[command(after_long_help = "Examples:\n  weft fs quota report home\n  \
        weft fs quota report home --users --limited\n  \
        weft fs quota report home --json | jq '.quotas[] | select(.used_percent > 90)'")]
    Report(QuotaReportArgs),
}

/// A user, a group, a project or a directory.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct Whose {
    /// A user: name or number
    #[arg(long, value_name = "ID")]
    pub user: Option<String>,
    /// A group: name or number
    #[arg(long, value_name = "ID")]
    pub group: Option<String>,
    /// A project: a number, or a name of /etc/projid
    #[arg(long, value_name = "ID")]
    pub project: Option<String>,
    /// A directory with all that is in it
    #[arg(long, value_name = "PATH")]
    pub directory: Option<OsString>,
}

/// Arguments of `weft fs quota set`.
#[derive(Clone, Debug, clap::Args)]
pub struct QuotaSetArgs {
    /// The file system's name
    pub name: String,
    /// Whose
    #[command(flatten)]
    pub whose: Whose,
    /// The most bytes of files, such as 100GiB, or `none`
    #[arg(long, value_name = "SIZE|none", required_unless_present = "inodes", allow_hyphen_values = true)]
    pub bytes: Option<Most<Size>>,
    /// The most files, directories and what else has an inode, or `none`
    #[arg(long, value_name = "N|none", allow_hyphen_values = true)]
    pub inodes: Option<Most<u64>>,
}

/// Arguments of `weft fs quota report`.
#[derive(Clone, Debug, clap::Args)]
pub struct QuotaReportArgs {
    /// The file system's name
    pub name: String,
    /// Users only
    #[arg(long, conflicts_with_all = ["groups", "projects"])]
    pub users: bool,
    /// Groups only
    #[arg(long, conflicts_with = "projects")]
    pub groups: bool,
    /// Projects only
    #[arg(long)]
    pub projects: bool,
    /// Those only that have a limit
    #[arg(long)]
    pub limited: bool,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Most<T> {
    /// No limit.
    None,
    /// This.
    Of(T),
}

impl<T: FromStr> FromStr for Most<T>
where
    T::Err: std::fmt::Display,
{
    type Err = String;

    fn from_str(text: &str) -> Result<Most<T>, String> {
        match text {
            "none" => Ok(Most::None),
            text => text.parse().map(Most::Of).map_err(|error| format!("{error}, or `none`")),
        }
    }
}

/// What a user, group or project uses and may use, for programs.
#[derive(Serialize)]
struct Quota {
    kind: &'static str,
    id: u32,
    /// None if this machine knows no name of that number.
    name: Option<String>,
    /// The directory that a project begins with. None of a user or group, and where it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<String>,
    used_bytes: u64,
    /// Of open files, beyond what they use. Counts as long as they are open.
    reserved_bytes: u64,
    /// None without a limit.
    limit_bytes: Option<u64>,
    used_inodes: u64,
    limit_inodes: Option<u64>,
    /// Of the limit that is nearer. None without a limit.
    used_percent: Option<u64>,
    /// Shards that go by another limit, because setting it was interrupted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    otherwise_in_shards: Vec<u16>,
}

/// One of them, for programs.
#[derive(Serialize)]
struct OneQuota {
    file_system: String,
    #[serde(flatten)]
    quota: Quota,
}

/// All of them, for programs.
#[derive(Serialize)]
struct Quotas {
    file_system: String,
    quotas: Vec<Quota>,
}

pub(crate) async fn run(place: &FabricPlace, command: QuotaCommand, output: Output) -> Result<(), CliError> {
    match command {
        QuotaCommand::Set(args) => set(place, &args, output).await,
        QuotaCommand::Show { name, whose } => {
            let quota = attached((place, &name, AttachMode::ReadOnly), async |mount| {
                let of = whose.quota(mount).await?;
                quota(mount, mount.quota(of).await?).await
            });
            let quota = quota.await?;
            output.show(&OneQuota { file_system: name, quota }, |one, paint| one_in_words(&one.quota, paint))
        }
        QuotaCommand::Report(args) => report(place, args, output).await,
    }
}

async fn set(place: &FabricPlace, args: &QuotaSetArgs, output: Output) -> Result<(), CliError> {
    let quota = attached((place, &args.name, AttachMode::Shared), async |mount| {
        let (of, directory) = match &args.whose.directory {
            Some(path) => project_of(mount, path.as_bytes()).await?,
            None => (args.whose.quota(mount).await?, None),
        };
        let before = mount.quota(of).await?.limit;
        let limit = QuotaAmount {
            bytes: args.bytes.map_or(before.bytes, |most| most.number(|size| size.0)),
            inodes: args.inodes.map_or(before.inodes, |most| most.number(|inodes| inodes)),
        };
        mount.set_quota(of, limit, directory).await?;
        quota(mount, mount.quota(of).await?).await
    });
    let quota = quota.await?;
    output.show(&OneQuota { file_system: args.name.clone(), quota }, |one, paint| {
        one_in_words(&one.quota, paint)
    })
}

async fn report(place: &FabricPlace, args: QuotaReportArgs, output: Output) -> Result<(), CliError> {
    let one =
        [(args.users, QuotaKind::User), (args.groups, QuotaKind::Group), (args.projects, QuotaKind::Project)];
    let one = one.into_iter().find(|(is_asked, _)| *is_asked).map(|(_, kind)| kind);
    let first = QuotaOf { kind: one.unwrap_or(QuotaKind::User), id: 0 };
    let last = QuotaOf { kind: one.unwrap_or(QuotaKind::Project), id: u32::MAX };
    let quotas = attached((place, &args.name, AttachMode::ReadOnly), async |mount| {
        let mut quotas = Vec::new();
        for report in mount.quotas(first, last).await? {
            if !args.limited || report.limit != QuotaAmount::UNLIMITED {
                quotas.push(quota(mount, report).await?);
            }
        }
        Ok(quotas)
    });
    let quotas = Quotas { quotas: quotas.await?, file_system: args.name };
    output.show(&quotas, in_words)
}

impl<T: Copy> Most<T> {
    fn number(self, number: impl Fn(T) -> u64) -> u64 {
        match self {
            Most::None => u64::MAX,
            Most::Of(most) => number(most),
        }
    }
}

impl Whose {
    /// The quota that is meant.
    async fn quota(&self, mount: &Mount) -> Result<QuotaOf, CliError> {
        let (kind, what, text) = match (&self.user, &self.group, &self.project, &self.directory) {
            (Some(user), ..) => (QuotaKind::User, "user", user),
            (_, Some(group), ..) => (QuotaKind::Group, "group", group),
            (_, _, Some(project), _) => return Ok(of_project(project::counted(project)?)),
            (.., Some(path)) => {
                return match mount.project(mount.names().find(path.as_bytes(), true).await?.inode).await? {
                    0 => Err(CliError::Failed {
                        message: format!("{} belongs to no project", text(path.as_bytes())),
                        hint: "`weft fs quota set --directory` gives it a limit".into(),
                    }),
                    project => Ok(of_project(project)),
                };
            }
            _ => unreachable!("one of them is required"),
        };
        let named = || match kind {
            QuotaKind::User => get_user_by_name(text).map(|user| user.uid()),
            _ => get_group_by_name(text).map(|group| group.gid()),
        };
        let id = text.parse().ok().or_else(named).ok_or_else(|| CliError::Usage {
            message: format!("this machine knows no {what} '{text}'"),
            hint: format!("name the {what} by its number, as `id` shows it where it is known"),
        })?;
        Ok(QuotaOf { kind, id })
    }
}

fn of_project(id: u32) -> QuotaOf {
    QuotaOf { kind: QuotaKind::Project, id }
}

/// The project that begins with a directory. If none does, all that is in it is given to a new one.
async fn project_of(mount: &Mount, path: &[u8]) -> Result<(QuotaOf, Option<InodeNumber>), CliError> {
    let top = mount.names().find(path, true).await?;
    if top.kind != FileKind::Directory {
        return Err(CliError::Failed {
            message: format!("{} is not a directory", text(path)),
            hint: "name the directory that it is in".into(),
        });
    }
    let above = mount.names().find(&[path, b"/.."].concat(), true).await?;
    let (own, of_above) = (mount.project(top.inode).await?, mount.project(above.inode).await?);
    let begins_here = own != 0 && (own != of_above || above.inode == top.inode);
    let project = if begins_here { own } else { mount.free_project(top.inode).await? };
    let of = of_project(project);
    // The directory is kept with the limit once all that is in it belongs to the project.
    if mount.quota(of).await?.directory != Some(top.inode) {
        project::give(mount, &top, project).await?;
    }
    Ok((of, Some(top.inode)))
}

/// A quota for programs, with the path of its directory.
async fn quota(mount: &Mount, report: QuotaReport) -> Result<Quota, CliError> {
    let path = match report.directory {
        Some(directory) => mount.path_of(directory).await?,
        None => None,
    };
    Ok(Quota { directory: path.map(|path| text(&path)), ..without_path(report) })
}

fn without_path(report: QuotaReport) -> Quota {
    let QuotaReport { of: QuotaOf { kind, id }, used, reserved, limit, otherwise_in, .. } = report;
    let some = |limit: u64| (limit != u64::MAX).then_some(limit);
    let percent = |used: u64, limit: u64| {
        let part = some(limit)?;
        Some(
            (u128::from(used) * 100)
                .checked_div(u128::from(part))
                .map_or(100, |n| n.try_into().unwrap_or(u64::MAX)),
        )
    };
    let name = match kind {
        QuotaKind::User => get_user_by_uid(id).map(|user| user.name().to_string_lossy().into_owned()),
        QuotaKind::Group => get_group_by_gid(id).map(|group| group.name().to_string_lossy().into_owned()),
        QuotaKind::Project => project::name(id),
    };
    Quota {
        kind: match kind {
            QuotaKind::User => "user",
            QuotaKind::Group => "group",
            QuotaKind::Project => "project",
        },
        id,
        name,
        directory: None,
        used_bytes: used.bytes,
        reserved_bytes: reserved,
        limit_bytes: some(limit.bytes),
        used_inodes: used.inodes,
        limit_inodes: some(limit.inodes),
        used_percent: percent(used.bytes, limit.bytes).max(percent(used.inodes, limit.inodes)),
        otherwise_in_shards: otherwise_in,
    }
}

impl Quota {
    fn whose(&self) -> String {
        self.name.clone().or_else(|| self.directory.clone()).unwrap_or_else(|| self.id.to_string())
    }

    fn tone(&self) -> Tone {
        match self.used_percent {
            Some(100..) => Tone::Bad,
            Some(NEAR_PERCENT..) => Tone::Warning,
            _ => Tone::Plain,
        }
    }
}

fn limit_in_words(limit: Option<u64>, words: impl Fn(u64) -> String) -> String {
    limit.map_or_else(|| "none".to_owned(), words)
}

fn one_in_words(quota: &Quota, paint: Paint) -> String {
    let size = |bytes: u64| Size(bytes).to_string();
    let mut lines = vec![
        (quota.kind, format!("{} ({})", quota.whose(), quota.id)),
        ("used", format!("{}, {} inodes", size(quota.used_bytes), quota.used_inodes)),
    ];
    if quota.reserved_bytes > 0 {
        lines.push((
            "reserved",
            format!("{} more, ahead of files that are open to write", size(quota.reserved_bytes)),
        ));
    }
    let inodes = limit_in_words(quota.limit_inodes, |inodes| inodes.to_string());
    lines.push(("limits", format!("{}, {inodes} inodes", limit_in_words(quota.limit_bytes, size))));
    let mut text = fields(paint, &lines);
    text.push_str(&otherwise_in_words(std::slice::from_ref(quota)));
    text
}

fn in_words(quotas: &Quotas, paint: Paint) -> String {
    let mut table = Table::new(&["KIND", "NAME", ">ID", ">USED", ">LIMIT", ">INODES", ">LIMIT", ">PERCENT"]);
    for quota in &quotas.quotas {
        let percent = quota.used_percent.map_or_else(|| "-".to_owned(), |percent| percent.to_string());
        table.row(row![
            quota.kind,
            quota.name.as_deref().or(quota.directory.as_deref()).unwrap_or("-"),
            &quota.id,
            Size(quota.used_bytes).to_string(),
            limit_in_words(quota.limit_bytes, |bytes| Size(bytes).to_string()),
            &quota.used_inodes,
            limit_in_words(quota.limit_inodes, |inodes| inodes.to_string()),
            Cell::new(percent, quota.tone()),
        ]);
    }
    let mut text = table_or_note(&table, paint, "Nothing is used, and nothing is limited.");
    text.push_str(&otherwise_in_words(&quotas.quotas));
    text
}

/// Limits that do not hold in all shards.
fn otherwise_in_words(quotas: &[Quota]) -> String {
    let halfway = quotas.iter().filter(|quota| !quota.otherwise_in_shards.is_empty());
    halfway
        .map(|quota| {
            let shards: Vec<String> = quota.otherwise_in_shards.iter().map(u16::to_string).collect();
            format!(
                "The limit of {} {} is another one in shards {}: run `weft fs quota set` again.\n",
                quota.kind,
                quota.whose(),
                shards.join(", ")
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_sizes_numbers_or_none() {
        assert_eq!("none".parse(), Ok(Most::<Size>::None));
        assert_eq!("1GiB".parse(), Ok(Most::Of(Size(1 << 30))));
        assert_eq!("17".parse(), Ok(Most::Of(17u64)));
        let refused = "1GB".parse::<Most<Size>>().map_err(|error| error.contains("or `none`"));
        assert_eq!(refused, Err(true));
    }

    #[test]
    fn the_nearer_limit_says_how_much_is_used() {
        let report = |used, limit| QuotaReport {
            of: QuotaOf { kind: QuotaKind::User, id: 4_000_000_000 },
            used,
            reserved: 0,
            limit,
            directory: None,
            otherwise_in: Vec::new(),
        };
        let amount = |bytes, inodes| QuotaAmount { bytes, inodes };
        assert_eq!(without_path(report(amount(50, 9), QuotaAmount::UNLIMITED)).used_percent, None);
        assert_eq!(without_path(report(amount(50, 9), amount(100, 10))).used_percent, Some(90));
        assert_eq!(without_path(report(amount(50, 9), amount(40, u64::MAX))).used_percent, Some(125));
        assert_eq!(without_path(report(amount(0, 0), amount(0, u64::MAX))).used_percent, Some(100));
        assert_eq!(without_path(report(amount(u64::MAX, 1), amount(1, 1))).used_percent, Some(u64::MAX));
    }
}
