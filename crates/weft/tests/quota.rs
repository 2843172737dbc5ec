//! Quotas from end to end: a user fills directories of several shards by two mounts, and gets no more than
//! the limit; what is counted is what is there, also after a node has died.

mod bed;

use bed::mounts::{Folder, with_home};
use bed::{Bed, wait_until};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A user and group that no machine has.
const USER: u32 = 42_424;
const GROUP: u32 = 42_425;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 8 * MIB;

/// Directories of the user.
const DIRECTORIES: usize = 6;

/// Runs a script in a folder, as the user.
fn as_user(folder: &Path, script: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).current_dir(folder).uid(USER).gid(USER).output().expect("sh runs")
}

/// Makes files until one fails, and says why.
fn fill(folder: &Path) -> String {
    let script = "i=0; while head -c 300000 /dev/zero >\"fill-$i\"; do i=$((i + 1)); done";
    String::from_utf8_lossy(&as_user(folder, script).stderr).into_owned()
}

/// Bytes of files below a folder in whole blocks, and inodes.
fn there(folder: &Path) -> (u64, u64) {
    let found = fs::symlink_metadata(folder).expect("it is there");
    if !found.is_dir() {
        return (found.len().next_multiple_of(4096), 1);
    }
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.map(|path| there(&path)).fold((0, 1), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

struct Quotas {
    a: Folder,
    b: Folder,
    /// Ends last.
    bed: Bed,
}

impl Quotas {
    fn of_user(&self) -> serde_json::Value {
        self.bed.json(&["fs", "quota", "show", "wide", "--user", &USER.to_string()])
    }

    fn limit(&self, more: &[&str]) {
        let user = USER.to_string();
        let words = [&["fs", "quota", "set", "wide", "--user", &user][..], more].concat();
        self.bed.ok(&words);
    }

    fn homes(&self) -> impl Iterator<Item = PathBuf> + use<'_> {
        (0..DIRECTORIES).map(|n| if n % 2 == 0 { &self.a } else { &self.b }.join(&format!("d{n}")))
    }

    /// What the user has by the names that there are.
    fn there(&self) -> (u64, u64) {
        self.homes().map(|home| there(&home)).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// What is counted becomes what is there: open files are closed, and removed ones purged.
    fn is_counted(&self) {
        wait_until("what is counted is there", || {
            let (said, there) = (self.of_user(), self.there());
            let used = (said["used_bytes"].as_u64(), said["used_inodes"].as_u64());
            used == (Some(there.0), Some(there.1)) && said["reserved_bytes"] == 0
        });
    }

    fn fills_to_the_limit(&self) {
        let homes: Vec<PathBuf> = self.homes().collect();
        std::thread::scope(|scope| {
            for home in &homes {
                scope.spawn(move || {
                    let why = fill(home);
                    assert!(why.contains("Disk quota exceeded"), "{why}");
                });
            }
        });
        let (bytes, _) = self.there();
        assert!(bytes <= LIMIT && bytes > LIMIT - MIB, "{bytes} bytes are there");
        self.is_counted();
        assert_eq!(self.of_user()["limit_bytes"], LIMIT);
        assert!(self.of_user()["used_percent"].as_u64() > Some(87), "{}", self.of_user());
    }

    /// Who has used up the limit may do all that needs no more.
    fn goes_on_at_the_limit(&self) {
        let home = self.homes().next().expect("there is one");
        let over =
            as_user(&home, "printf y | dd of=fill-0 conv=notrunc bs=1 count=1 && cat fill-0 >/dev/null");
        assert!(over.status.success(), "{over:?}");
        fs::write(self.b.join("of-root"), vec![7; 1 << 20]).expect("others have no limit");
        let cut = as_user(&home, "truncate -s 0 fill-0 && mv fill-0 empty");
        assert!(cut.status.success(), "{cut:?}");
        self.is_counted();
        let again = as_user(&home, "head -c 200000 /dev/zero >again");
        assert!(again.status.success(), "{again:?}");
    }

    fn limits_inodes_and_groups(&self) {
        self.is_counted();
        let most = self.of_user()["used_inodes"].as_u64().expect("a number") + 3;
        self.limit(&["--inodes", &most.to_string(), "--bytes", "none"]);
        let home = self.homes().nth(1).expect("there is one");
        let made = as_user(&home, "for i in 1 2 3; do : >new-$i || exit 1; done; mkdir new-4");
        let why = String::from_utf8_lossy(&made.stderr).into_owned();
        assert!(!made.status.success() && why.contains("Disk quota exceeded"), "{made:?}");
        assert!(home.join("new-3").exists() && !home.join("new-4").exists());
        self.limit(&["--inodes", "none"]);
        assert!(as_user(&home, "mkdir new-4").status.success());

        let group = GROUP.to_string();
        self.bed.ok(&["fs", "quota", "set", "wide", "--group", &group, "--bytes", "512KiB"]);
        let refused =
            chown(self.a.join("of-root"), None, Some(GROUP)).expect_err("the group has no room for it");
        assert_eq!(refused.raw_os_error(), Some(122), "{refused}");
        assert_eq!(fs::metadata(self.a.join("of-root")).expect("it is there").gid(), 0);
        chown(self.homes().next().expect("there is one").join("empty"), None, Some(GROUP))
            .expect("it is empty");
        let shown = self.bed.ok(&["fs", "quota", "report", "wide", "--groups", "--limited"]);
        assert!(shown.contains(&group) && !shown.contains(&USER.to_string()), "{shown}");
    }

    /// The next server of a shard counts the same.
    fn a_node_dies(&self) {
        self.is_counted();
        self.limit(&["--bytes", "8MiB"]);
        let served = self.bed.json(&["fs", "show", "wide"]);
        let server = served["file_system"]["servers"][0]["server"].as_str().expect("it is served").to_owned();
        let server = server.split('\'').nth(1).expect("node 'NAME'").to_owned();
        self.bed.ok(&["node", "stop", &server, "--kill"]);
        self.is_counted();
        self.homes().for_each(|home| drop(fill(&home)));
        assert!(self.there().0 <= LIMIT, "{:?}", self.there());
        self.bed.ok(&["node", "start", &server]);
        self.is_counted();
        assert!(self.bed.ok(&["fs", "check", "wide"]).starts_with("sound: "));
    }
}

#[test]
fn a_user_gets_no_more_than_a_quota_on_any_mount() {
    let Some(bed) = with_home("quota") else { return };
    bed.ok(&["fs", "create", "wide", "--shards", "4", "--spread"]);
    let (a, b) = (Folder::new(&bed, "a"), Folder::new(&bed, "b"));
    bed.ok(&["mount", "wide", a.text()]);
    bed.ok(&["mount", "wide", b.text()]);
    let quotas = Quotas { a, b, bed };
    for n in 0..DIRECTORIES {
        let home = quotas.a.join(&format!("d{n}"));
        fs::create_dir(&home).expect("made");
        chown(&home, Some(USER), Some(USER)).expect("given away");
    }
    quotas.limit(&["--bytes", "8MiB"]);
    quotas.fills_to_the_limit();
    quotas.goes_on_at_the_limit();
    quotas.limits_inodes_and_groups();
    quotas.a_node_dies();
    quotas.bed.ok(&["umount", quotas.a.text()]);
    quotas.bed.ok(&["umount", quotas.b.text()]);
}

/// The error number with which a call was refused.
fn refused<T>(outcome: std::io::Result<T>) -> Option<i32> {
    outcome.err().and_then(|error| error.raw_os_error())
}

/// Names stay in a project, or outside of it; what is copied counts where it goes.
fn names_stay_in_a_project(a: &Folder, b: &Folder) {
    assert_eq!(refused(fs::rename(b.join("tree/one/file"), b.join("beside/moved"))), Some(libc::EXDEV));
    assert_eq!(refused(fs::rename(b.join("tree/two"), b.join("beside/two"))), Some(libc::EXDEV));
    assert_eq!(refused(fs::rename(b.join("beside/file"), b.join("tree/one/beside"))), Some(libc::EXDEV));
    assert_eq!(refused(fs::hard_link(b.join("tree/file"), b.join("link"))), Some(libc::EXDEV));
    fs::rename(a.join("tree/one/file"), a.join("tree/two/moved")).expect("it stays in the project");
    fs::rename(a.join("tree"), a.join("beside/tree")).expect("a project goes with its directory");
    let moved = Command::new("mv").arg(a.join("beside/tree/two/moved")).arg(a.join("out")).output();
    assert!(moved.expect("mv runs").status.success());
}

#[test]
fn a_directory_has_a_quota_with_all_that_is_in_it() {
    let Some(bed) = with_home("quota-tree") else { return };
    bed.ok(&["fs", "create", "wide", "--shards", "4", "--spread"]);
    let (a, b) = (Folder::new(&bed, "a"), Folder::new(&bed, "b"));
    bed.ok(&["mount", "wide", a.text()]);
    bed.ok(&["mount", "wide", b.text()]);
    for (n, name) in ["tree", "tree/one", "tree/one/deep", "tree/two", "beside"].iter().enumerate() {
        fs::create_dir(a.join(name)).expect("made");
        fs::write(a.join(name).join("file"), vec![n as u8; 100_000]).expect("written");
    }
    let of_tree = |more: &[&str]| bed.json(&[&["fs", "quota", "show", "wide"], more].concat());
    bed.weft(&["fs", "quota", "show", "wide", "--directory", "/tree"]).fails(1, &["belongs to no project"]);
    let set = bed.json(&["fs", "quota", "set", "wide", "--directory", "/tree", "--bytes", "2MiB"]);
    assert_eq!((&set["kind"], &set["used_inodes"]), (&"project".into(), &8.into()), "{set}");
    let project = set["id"].as_u64().expect("a number").to_string();
    let project_of = |path: &str| {
        let shown = bed.json(&["fs", "project", "show", "wide", path]);
        shown["project"].as_u64().expect("a number").to_string()
    };
    for path in ["/tree", "/tree/file", "/tree/one/deep/file", "/tree/two"] {
        assert_eq!(project_of(path), project, "{path}");
    }
    assert_eq!(project_of("/beside/file"), "0");

    // Whoever writes there, by any mount, and however deep.
    let fill = |folder: PathBuf| {
        fs::create_dir(&folder).expect("made");
        (0..100).find_map(|n| refused(fs::write(folder.join(n.to_string()), vec![1; 300_000])))
    };
    assert_eq!(fill(b.join("tree/one/new")), Some(libc::EDQUOT));
    assert_eq!(refused(fs::write(a.join("tree/two/more"), vec![1; 400_000])), Some(libc::EDQUOT));
    fs::write(a.join("beside/more"), vec![1; 4_000_000]).expect("it is not limited");
    let has = there(&a.join("tree"));
    assert!(has.0 <= 2 * MIB && has.0 > MIB, "{has:?}");
    wait_until("what is counted is there", || {
        let said = of_tree(&["--directory", "/tree/one/deep"]);
        (said["used_bytes"].as_u64(), said["used_inodes"].as_u64()) == (Some(has.0), Some(has.1))
    });

    names_stay_in_a_project(&a, &b);
    assert_eq!((project_of("/out"), project_of("/beside/tree")), ("0".into(), project.clone()));

    // A limit within a limit is another project, and stays one.
    let inner = ["fs", "quota", "set", "wide", "--directory", "/beside/tree/two", "--inodes", "4"];
    bed.ok(&inner);
    // What was removed is purged.
    wait_until("it has three", || of_tree(&["--directory", "/beside/tree/two"])["used_inodes"] == 3);
    assert_ne!(project_of("/beside/tree/two/file"), project);
    fs::write(b.join("beside/tree/two/fourth"), b"x").expect("one more may be made");
    assert_eq!(refused(fs::write(b.join("beside/tree/two/fifth"), b"x")), Some(libc::EDQUOT));
    let set = bed.ok(&["fs", "project", "set", "wide", "/beside/tree", "77", "--recursive"]);
    assert!(set.contains("project 77, with "), "{set}");
    assert_eq!(
        (project_of("/beside/tree/one/deep"), project_of("/beside/tree/file")),
        ("77".into(), "77".into())
    );
    assert_ne!(project_of("/beside/tree/two/fourth"), "77");
    let report = bed.ok(&["fs", "quota", "report", "wide", "--projects"]);
    assert!(report.contains("77") && !report.contains("user"), "{report}");
    assert!(report.contains(" /beside/tree/two "), "the directory has another name now: {report}");
    assert!(bed.ok(&["fs", "check", "wide"]).starts_with("sound: "));
    bed.ok(&["umount", a.text()]);
    bed.ok(&["umount", b.text()]);
}

#[test]
fn quotas_of_unknown_users_and_of_nothing_are_refused() {
    let Some(bed) = with_home("quota-bad") else { return };
    let set = ["fs", "quota", "set", "home"];
    let refused = |words: &[&str], says: &[&str]| bed.weft(&[&set, words].concat()).fails(2, says);
    refused(&["--user", "no such one", "--bytes", "1GiB"], &["knows no user 'no such one'", "by its number"]);
    refused(&["--group", "no such one", "--bytes", "1GiB"], &["knows no group 'no such one'"]);
    refused(
        &["--project", "no such one", "--bytes", "1GiB"],
        &["knows no project 'no such one'", "/etc/projid"],
    );
    bed.weft(&["fs", "quota", "set", "home", "--directory", "/none", "--bytes", "1GiB"])
        .fails(1, &["no such file"]);
    refused(&["--project", "0", "--bytes", "1GiB"], &["project 0", "not counted"]);
    bed.weft(&["fs", "project", "set", "home", "/", "x"]).fails(2, &["knows no project 'x'"]);
    refused(&["--user", "1", "--bytes", "1GB"], &["1GB", "or `none`"]);
    refused(&["--user", "1", "--inodes", "-1"], &["-1"]);
    refused(&["--user", "1"], &["--bytes"]);
    refused(&["--bytes", "1GiB"], &["--user"]);
    refused(&["--user", "1", "--group", "1", "--bytes", "1GiB"], &["cannot be used with"]);
    let shown = bed.json(&["fs", "quota", "show", "home", "--user", "77"]);
    assert_eq!(
        (&shown["used_bytes"], &shown["limit_bytes"]),
        (&0.into(), &serde_json::Value::Null),
        "{shown}"
    );
}
