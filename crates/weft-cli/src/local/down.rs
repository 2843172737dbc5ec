//! `weft down`: stops a local fabric, and removes it if asked to.

use super::folder::{MANAGER, SUPERVISOR};
use super::stop::{forget, running, stop_all, stop_supervisor, supervisor};
use super::{Folder, LocalConfig, LocalError, LocalNode, ProcessId};
use crate::change::{confirm, would_be};
use crate::error::CliError;
use crate::output::Output;
use crate::size::Size;
use serde::Serialize;
use std::fs;
use std::path::PathBuf;

/// Stop the fabric that `weft up` started
///
/// Nodes are stopped first and write what they hold in memory to their drives, the manager last. No copy
/// leaves its group because its node stops before the others. A process that does not stop within 10 seconds
/// is killed; no acknowledged write is lost by that. The data stays in the folder, and `weft up` brings it
/// back.
///
/// Only processes that `weft up` or `weft node start` started are stopped.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  weft down\n  weft down --dir /srv/fabric --destroy --dry-run\n  \
                             weft down --dir /srv/fabric --destroy --yes")]
pub struct DownArgs {
    /// The fabric's folder [default: the folder named by --fabric or WEFT_FABRIC, or ./weft-fabric]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Remove the fabric with all its data
    ///
    /// Only files that belong to the fabric are removed, and the folder itself if it is empty then.
    #[arg(long)]
    pub destroy: bool,
    /// Do not ask before data is removed
    #[arg(long, requires = "destroy")]
    pub yes: bool,
    /// Say what would be stopped and removed, and do nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// What was, or would be, stopped and removed.
#[derive(Serialize)]
struct Report {
    dir: PathBuf,
    stopped: Vec<String>,
    removed: Vec<PathBuf>,
    dry_run: bool,
}

pub(crate) async fn down(args: &DownArgs, folder: &Folder, output: Output) -> Result<(), CliError> {
    let config = folder.require_config()?;
    let supervisor = supervisor(folder);
    let stopped: Vec<String> = running(folder, &config).into_iter().map(|(name, _)| name).collect();
    let removed = if args.destroy { belongings(folder, &config) } else { Vec::new() };
    let report = Report { dir: folder.path().to_owned(), stopped, removed, dry_run: args.dry_run };
    if !args.dry_run {
        if args.destroy {
            let bytes = config.total_bytes().unwrap_or(u64::MAX);
            let what = format!(
                "This removes fabric {} in {}: all volumes on {} of drives, for good.",
                config.fabric.short(),
                folder.path().display(),
                Size(bytes)
            );
            confirm(&what, "yes", args.yes)?;
        }
        if let Some(id) = supervisor {
            stop_supervisor(folder, &id).await?;
        }
        let _lock = folder.lock_patiently().await?;
        stop_all(folder, &config).await.map_err(|error| not_stopped(error, args.destroy))?;
        forget(folder, SUPERVISOR)?;
        if args.destroy {
            remove(folder, &config.nodes, &report.removed)?;
        }
    }
    output.show(&report, |report, _| describe(report))
}

/// What runs still may write: nothing is removed under it.
fn not_stopped(error: LocalError, destroys: bool) -> CliError {
    let error = CliError::from(error);
    if !destroys {
        return error;
    }
    CliError::Failed { message: format!("{}; nothing was removed", error.chain()), hint: error.hint() }
}

/// Everything that belongs to the fabric, in the order in which it is removed: the description goes after the
/// data that it describes, so that an interrupted removal can be run again.
fn belongings(folder: &Folder, config: &LocalConfig) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = config.nodes.iter().flat_map(|node| folder.drives(node)).collect();
    paths.push(folder.map_file());
    paths.extend(folder.backups());
    let names = || config.nodes.iter().map(|n| n.name.as_str()).chain([MANAGER]);
    paths.extend(names().flat_map(|name| folder.log_files(name)));
    // Of members that have ended by themselves; the others' go when they are stopped.
    paths.extend(
        names().map(|name| folder.pid_file(name)).filter(|path| ProcessId::read_alive(path).is_none()),
    );
    paths.push(folder.socket());
    paths.push(folder.path().join("run/lock"));
    paths.push(folder.config_file());
    // What cannot be seen is not taken for missing: then its removal fails, and the description stays.
    paths.retain(|path| path.try_exists().unwrap_or(true));
    paths
}

/// Removes the files, and the folders that are empty afterwards. If that ends halfway, the error says what is gone
/// and what is still there.
fn remove(folder: &Folder, nodes: &[LocalNode], paths: &[PathBuf]) -> Result<(), CliError> {
    for (done, path) in paths.iter().enumerate() {
        match fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(ended_halfway(
                    LocalError::file("remove", path)(e),
                    &paths[..done],
                    &paths[done..],
                ));
            }
            _ => {}
        }
    }
    let mut folders: Vec<PathBuf> = paths.iter().filter_map(|p| Some(p.parent()?.to_owned())).collect();
    // Also those whose files an earlier attempt has removed.
    folders.extend(nodes.iter().map(|node| folder.path().join("nodes").join(&node.name)));
    folders
        .extend(["nodes", "manager/backups", "manager", "run", "log"].map(|name| folder.path().join(name)));
    folders.push(folder.path().to_owned());
    folders.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    for path in folders {
        // One that still holds something, which is not the fabric's, stays.
        let _ = fs::remove_dir(path);
    }
    Ok(())
}

fn ended_halfway(error: LocalError, gone: &[PathBuf], left: &[PathBuf]) -> CliError {
    let error = CliError::from(error);
    let list = |paths: &[PathBuf]| match paths {
        [] => "nothing".to_owned(),
        paths => paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "),
    };
    CliError::Failed {
        message: format!("{}; removed by then: {}; still there: {}", error.chain(), list(gone), list(left)),
        hint: format!("{}; then run the command again: it removes the rest", error.hint()),
    }
}

fn describe(report: &Report) -> String {
    let dir = report.dir.display();
    let would = would_be(report.dry_run);
    let mut text = match report.stopped.as_slice() {
        [] => format!("the fabric in {dir} is not running\n"),
        names => format!("{would}stopped: {}\n", names.join(", ")),
    };
    for path in &report.removed {
        text.push_str(&format!("{would}removed: {}\n", path.display()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::LocalShape;
    use super::super::process::UNKILLABLE;
    use super::*;
    use std::path::Path;
    use std::process::{Child, Command};

    /// Processes that stand for members; ended whatever happens.
    struct Stand(Vec<Child>);

    impl Drop for Stand {
        fn drop(&mut self) {
            for child in &mut self.0 {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// A folder like that of a fabric with two nodes that run, and its manager.
    fn fabric(name: &str) -> (Folder, LocalConfig, Stand) {
        let path = std::env::temp_dir().join(format!("weft-down-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let folder = Folder::at(&path);
        drop(folder.make().expect("a new folder"));
        let made = weft_rt::block_on(async {
            let shape =
                LocalShape { nodes: 2, drives: 1, drive_bytes: 1 << 30, sparse: true, threads: 1, parts: 1 };
            LocalConfig::new(shape, 24_500)
        });
        let config = LocalConfig { is_formatted: true, ..made.expect("it runs").expect("it fits") };
        folder.write_config(&config).expect("written");
        let mut stand = Stand(Vec::new());
        let names = config.nodes.iter().map(|n| n.name.as_str()).chain([MANAGER]);
        for name in names {
            let child = Command::new("sleep").arg("600").spawn().expect("sleep runs");
            let id = ProcessId::of(child.id() as i32).expect("it runs");
            id.write(&folder.pid_file(name)).expect("written");
            stand.0.push(child);
            write(&folder.log_file(name));
            write(&folder.path().join(format!("log/{name}.log.1")));
        }
        config.nodes.iter().flat_map(|node| folder.drives(node)).for_each(|drive| write(&drive));
        write(&folder.map_file());
        write(&folder.path().join("manager/backups/map-1.weftmap"));
        (folder, config, stand)
    }

    fn write(path: &Path) {
        fs::create_dir_all(path.parent().expect("it has one")).expect("made");
        fs::write(path, "x").expect("written");
    }

    fn destroy(folder: &Folder) -> Result<(), CliError> {
        let args = DownArgs { dir: None, destroy: true, yes: true, dry_run: false };
        let output = Output { is_json: true, paint: crate::paint::Paint::off() };
        let folder = folder.clone();
        weft_rt::block_on(async move { down(&args, &folder, output).await }).expect("it runs")
    }

    #[test]
    fn nothing_is_removed_under_a_node_that_does_not_stop() {
        let (folder, config, mut stand) = fabric("stuck");
        let pid = stand.0[1].id() as i32;
        UNKILLABLE.set(Some(pid));
        let error = destroy(&folder).expect_err("it runs still");
        let (text, hint) = (error.chain(), error.hint());
        assert!(text.contains(&format!("node-2 (process {pid}: it was killed and does not end)")), "{text}");
        assert!(text.contains("nothing was removed") && !text.contains("node-1"), "{text}");
        assert!(hint.contains(&format!("-p {pid}`")) && hint.contains("run the command again"), "{hint}");
        let drives = config.nodes.iter().flat_map(|node| folder.drives(node));
        assert!({ drives }.chain([folder.map_file(), folder.config_file()]).all(|path| path.exists()));
        assert_eq!(running(&folder, &config).len(), 1, "the others are stopped");
        UNKILLABLE.set(None);
        stand.0[1].kill().expect("it is ours");
        stand.0[1].wait().expect("it ends");
        destroy(&folder).expect("now it is done");
        assert!(!folder.path().exists(), "nothing is left");
    }

    #[test]
    fn a_file_that_cannot_be_removed_is_named_with_what_is_left() {
        let (folder, config, _stand) = fabric("file");
        // A folder in the place of the second drive, with something in it.
        let drive = folder.drives(&config.nodes[1]).remove(0);
        fs::remove_file(&drive).expect("removed");
        write(&drive.join("mine"));
        let first = folder.drives(&config.nodes[0]).remove(0);
        for _ in 0..2 {
            let error = destroy(&folder).expect_err("it cannot be removed");
            let (text, hint) = (error.chain(), error.hint());
            let (gone, left) = text.split_once("; still there: ").expect("both are told");
            assert!(gone.contains(&format!("cannot remove {}", drive.display())), "{text}");
            assert!(left.contains(&drive.display().to_string()) && left.contains("fabric.json"), "{text}");
            assert!(hint.contains("run the command again"), "{hint}");
            assert!(!first.exists() && folder.config_file().exists());
        }
        fs::rename(&drive, folder.path().with_extension("mine")).expect("out of the way");
        destroy(&folder).expect("now it is done");
        assert!(!folder.path().exists(), "nothing is left");
        fs::remove_dir_all(folder.path().with_extension("mine")).expect("removed");
    }
}
