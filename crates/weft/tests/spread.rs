//! A file system with directories in all of its shards, from end to end: two mounts, operations over several
//! shards, the death of a node that serves some, and a check of all that there is.

mod bed;

use bed::mounts::{Folder, with_home};
use bed::wait_until;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Directories that are made in the root.
const DIRECTORIES: usize = 24;

/// The shard that an inode lies in.
fn shard(path: &Path) -> u64 {
    fs::metadata(path).expect("it is there").ino() >> 52
}

#[test]
fn directories_lie_in_all_shards_and_agree() {
    let Some(bed) = with_home("spread") else { return };
    let created = bed.ok(&["fs", "create", "wide", "--shards", "8", "--spread"]);
    assert!(created.starts_with("file system wide created: "), "{created}");
    assert!(bed.ok(&["fs", "show", "wide"]).contains("8 of metadata, with directories in all of them"));
    assert!(bed.ok(&["fs", "show", "home"]).contains("with all names in the first"));
    let (a, b) = (Folder::new(&bed, "a"), Folder::new(&bed, "b"));
    bed.ok(&["mount", "wide", a.text()]);
    bed.ok(&["mount", "wide", b.text()]);

    let directory = |at: &Folder, n: usize| at.join(&format!("d{n}"));
    for n in 0..DIRECTORIES {
        let at = if n % 2 == 0 { &a } else { &b };
        fs::create_dir(directory(at, n)).expect("made");
        fs::write(directory(at, n).join("file"), format!("contents of {n}")).expect("written");
        fs::create_dir_all(directory(at, n).join("sub/deep")).expect("made");
    }
    let shards: BTreeSet<u64> = (0..DIRECTORIES).map(|n| shard(&directory(&b, n))).collect();
    assert!(shards.len() > 3, "{shards:?}");
    assert_eq!(
        shard(&directory(&a, 0).join("file")),
        shard(&directory(&b, 0)),
        "files lie with their directory"
    );

    // Names that lead from one shard to another, made by one mount and seen by the other.
    for n in 0..DIRECTORIES {
        let next = (n + 1) % DIRECTORIES;
        fs::hard_link(directory(&a, n).join("file"), directory(&a, next).join("linked")).expect("linked");
        fs::rename(directory(&b, n).join("sub"), directory(&b, next).join("moved")).expect("moved");
    }
    for n in 0..DIRECTORIES {
        let next = (n + 1) % DIRECTORIES;
        assert_eq!(fs::metadata(directory(&b, n).join("file")).expect("it is there").nlink(), 2);
        let content = fs::read_to_string(directory(&b, next).join("linked")).expect("readable");
        assert_eq!(content, format!("contents of {n}"));
        assert!(directory(&a, next).join("moved/deep").is_dir());
        assert_eq!(fs::read_dir(directory(&a, n)).expect("a folder").count(), 3);
    }
    let below = fs::rename(directory(&a, 0), directory(&a, 0).join("moved/deep/below"));
    assert_eq!(below.expect_err("a directory cannot be below itself").raw_os_error(), Some(22));

    // A node that serves some of the shards dies; its drives' other copies and other servers take over.
    let served = bed.json(&["fs", "show", "wide"]);
    let server = served["file_system"]["servers"][0]["server"].as_str().expect("it is served").to_owned();
    let server = server.split('\'').nth(1).expect("node 'NAME'").to_owned();
    bed.ok(&["node", "stop", &server, "--kill"]);
    for n in 0..DIRECTORIES {
        fs::rename(directory(&a, n).join("linked"), directory(&a, n / 2).join(format!("back-{n}")))
            .expect("moved");
        fs::remove_file(directory(&b, n).join("file")).expect("removed");
    }
    bed.ok(&["node", "start", &server]);
    wait_until("all is whole", || bed.ok(&["status"]).contains("healthy"));
    for n in 0..DIRECTORIES {
        let left = fs::metadata(directory(&b, n / 2).join(format!("back-{n}"))).expect("it is there");
        assert_eq!(left.nlink(), 1);
    }
    assert!(bed.ok(&["fs", "check", "wide"]).starts_with("sound: "));
    bed.ok(&["umount", a.text()]);
    bed.ok(&["umount", b.text()]);
    let checked = bed.json(&["fs", "check", "wide"]);
    assert_eq!(
        (checked["sound"].as_bool(), checked["unsettled"].as_u64()),
        (Some(true), Some(0)),
        "{checked}"
    );
}

#[test]
fn one_shard_cannot_be_spread_over() {
    let Some(bed) = with_home("spread-bad") else { return };
    let one = ["fs", "create", "wide", "--shards", "1", "--spread"];
    bed.weft(&one).fails(2, &["directories are to lie in several shards", "ask for more shards"]);
}
