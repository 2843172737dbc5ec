//! `weft fs project set|show`: files and directories that are counted and limited together.

use crate::error::CliError;
use crate::files::{attached, text};
use crate::locate::FabricPlace;
use crate::output::Output;
use crate::progress::Step;
use serde::Serialize;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use weft_client::AttachMode;
use weft_fs::Mount;
use weft_types::Attributes;

/// Where a machine has names of projects, as `xfs_quota` reads them: a line `name:number` for each.
const NAMES: &str = "/etc/projid";

/// What can be done with projects
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ProjectCommand {
    /// Have a file or directory belong to a project
    ///
    /// What is made in a directory from now on belongs to its project. What it has already stays as it is,
    /// unless --recursive is given. Then directories in it that belong to another project stay with that one,
    /// with all that is in them.
    ///
    /// A project is a number; /etc/projid may have names. Nothing is counted for project 0. A file gets no
    /// name in a directory of another project: programs get EXDEV, and `mv` copies it. `weft fs quota set
    /// --project` limits what all that belongs to it may use; --directory does both for one directory.
    #[command(after_long_help = "Examples:\n  weft fs project set home /projects/climate 12 --recursive\n  \
        weft fs project set home /projects/climate/results 12\n  \
        weft fs project set home /projects/climate 0 --recursive")]
    Set(ProjectSetArgs),
    /// Show the project of a file or directory
    #[command(after_long_help = "Examples:\n  weft fs project show home /projects/climate\n  \
        weft fs project show home /projects/climate --json | jq .project")]
    Show {
        /// The file system's name
        name: String,
        /// A file or a directory
        path: OsString,
    },
}

/// Arguments of `weft fs project set`.
#[derive(Clone, Debug, clap::Args)]
pub struct ProjectSetArgs {
    /// The file system's name
    pub name: String,
    /// A file or a directory
    pub path: OsString,
    /// The project: a number, or a name of /etc/projid; 0 for none
    pub project: String,
    /// Also all that is in the directory
    #[arg(long, short)]
    pub recursive: bool,
}

/// The project of an inode, for programs.
#[derive(Serialize)]
struct Shown {
    file_system: String,
    path: String,
    /// 0 for none.
    project: u32,
    /// None if this machine knows no name of that number.
    name: Option<String>,
    /// How many files and directories were given to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    given: Option<u64>,
}

pub(crate) async fn run(
    place: &FabricPlace,
    command: ProjectCommand,
    output: Output,
) -> Result<(), CliError> {
    let shown = match command {
        ProjectCommand::Set(args) => {
            let project = number(&args.project)?;
            let given = attached((place, &args.name, AttachMode::Shared), async |mount| {
                let found = mount.names().find(args.path.as_bytes(), true).await?;
                if args.recursive {
                    return give(mount, &found, project).await;
                }
                mount.set_project(found.inode, project).await?;
                Ok(1)
            });
            Shown { given: Some(given.await?), ..shown(args.name, &args.path, project) }
        }
        ProjectCommand::Show { name, path } => {
            let project = attached((place, &name, AttachMode::ReadOnly), async |mount| {
                Ok(mount.project(mount.names().find(path.as_bytes(), true).await?.inode).await?)
            });
            let project = project.await?;
            shown(name, &path, project)
        }
    };
    output.show(&shown, |shown, _| in_words(shown))
}

/// Gives an inode to a project, with all that is in it. Returns how many that were.
pub(crate) async fn give(mount: &Mount, top: &Attributes, project: u32) -> Result<u64, CliError> {
    let step = Step::new();
    let progress = |done: u64| step.says(&format!("{done} files and directories are in project {project}"));
    Ok(mount.set_project_of_tree(top, project, progress).await?)
}

fn shown(file_system: String, path: &OsString, project: u32) -> Shown {
    let path = text(path.as_bytes());
    Shown { file_system, path, project, name: name(project), given: None }
}

fn in_words(shown: &Shown) -> String {
    let Shown { file_system, path, project, name, given } = shown;
    let project = match (project, name) {
        (0, _) => "no project".to_owned(),
        (number, Some(name)) => format!("project {name} ({number})"),
        (number, None) => format!("project {number}"),
    };
    let given = match given {
        Some(n) if *n > 1 => format!(", with {} more in it", n - 1),
        _ => String::new(),
    };
    format!("{file_system}:{path}: {project}{given}\n")
}

/// The number of a project.
///
/// # Errors
/// If it is neither a number nor a name that this machine knows.
pub(crate) fn number(project: &str) -> Result<u32, CliError> {
    let named = || names().into_iter().find(|(name, _)| name == project).map(|(_, number)| number);
    project.parse().ok().or_else(named).ok_or_else(|| CliError::Usage {
        message: format!("this machine knows no project '{project}'"),
        hint: format!("name the project by its number, or write a line '{project}:NUMBER' to {NAMES}"),
    })
}

/// As [`number`], of a project that is counted.
///
/// # Errors
/// As [`number`], and if it is 0.
pub(crate) fn counted(project: &str) -> Result<u32, CliError> {
    match number(project)? {
        0 => Err(CliError::Usage {
            message: "project 0 is that of files without a project: they are not counted".into(),
            hint: "name another project; `weft fs project set` says what belongs to it".into(),
        }),
        counted => Ok(counted),
    }
}

/// The name that this machine has for a project.
pub(crate) fn name(project: u32) -> Option<String> {
    names().into_iter().find(|(_, number)| *number == project).map(|(name, _)| name)
}

fn names() -> Vec<(String, u32)> {
    named_in(&fs::read_to_string(NAMES).unwrap_or_default())
}

fn named_in(text: &str) -> Vec<(String, u32)> {
    let lines = text.lines().filter_map(|line| line.split('#').next()?.split_once(':'));
    lines.filter_map(|(name, number)| Some((name.trim().to_owned(), number.trim().parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_projects_are_lines_with_a_number() {
        let text = "# all of them\nclimate:12\nno number\nstars : 13 # since May\nwrong:x\n";
        assert_eq!(named_in(text), [("climate".to_owned(), 12), ("stars".to_owned(), 13)]);
    }
}
