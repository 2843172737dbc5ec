//! Files without a mount from end to end: real nodes serve the shards of a file system, one of them dies, and
//! what is removed gives its space back.

mod bed;

use bed::{Bed, sample, wait_until};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const MIB: usize = 1 << 20;

/// The node that serves the first shard.
fn server(bed: &Bed) -> String {
    let shown = bed.json(&["fs", "show", "home"]);
    let server = &shown["file_system"]["servers"][0];
    match (server["serves"].as_bool(), server["server"].as_str()) {
        (Some(true), Some(title)) => title.split('\'').nth(1).expect("it is node 'NAME'").to_owned(),
        _ => String::new(),
    }
}

/// Bytes that the drives hold.
fn used(bed: &Bed) -> u64 {
    let drives = bed.json(&["drive", "list"]);
    let drives = drives["drives"].as_array().expect("a list").clone();
    drives.iter().map(|drive| drive["usage"]["used_bytes"].as_u64().unwrap_or(0)).sum()
}

#[test]
fn files_live_through_the_death_of_the_node_that_serves_their_names() {
    let bed = Bed::new("files");
    bed.up(3, 1);
    bed.ok(&["fs", "create", "home"]);
    wait_until("the shards are served", || !server(&bed).is_empty());
    assert_eq!(bed.ok(&["fs", "ls", "home"]), "");
    bed.ok(&["fs", "mkdir", "home", "--parents", "/team/a/b", "/team/c"]);
    bed.weft(&["fs", "mkdir", "home", "/team"]).fails(1, &["/team: the name is taken", "another name"]);

    let content = sample(20 * MIB + 17, 3);
    fs::write(bed.path("file"), &content).expect("written");
    fs::set_permissions(bed.path("file"), fs::Permissions::from_mode(0o640)).expect("it is ours");
    bed.ok(&["fs", "put", "home", "file", "/team/a"]);
    bed.ok(&["fs", "put", "home", "file", "/team/a/again"]);
    let listed = bed.json(&["fs", "ls", "home", "/team/a"]);
    let names: Vec<&str> =
        listed["files"].as_array().expect("a list").iter().filter_map(|file| file["name"].as_str()).collect();
    assert_eq!(names, ["again", "b", "file"]);
    assert_eq!(
        (&listed["files"][2]["mode"], &listed["files"][2]["size_bytes"]),
        (&"0640".into(), &content.len().into())
    );

    let first = server(&bed);
    bed.ok(&["node", "stop", &first, "--kill"]);
    bed.ok(&["fs", "mkdir", "home", "/after"]);
    assert_ne!(server(&bed), first, "another one serves");
    bed.ok(&["fs", "get", "home", "/team/a/file", "back"]);
    assert!(fs::read(bed.path("back")).expect("it is there") == content);
    let mode = fs::metadata(bed.path("back")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    bed.weft(&["fs", "get", "home", "/team/a/file", "back"]).fails(4, &["back exists", "--force"]);
    bed.weft(&["fs", "get", "home", "/team/none", "-"]).fails(1, &["/team/none: no such file", "weft fs ls"]);
    bed.weft(&["fs", "ls", "nobody"]).fails(1, &["no file system 'nobody'", "weft fs list"]);
    bed.weft(&["fs", "put", "home", "none", "/x"]).fails(1, &["cannot open none"]);

    let checked = bed.ok(&["fs", "check", "home"]);
    assert!(checked.starts_with("sound: ") && checked.contains(" in 16 shards"), "{checked}");
    let inspected = bed.json(&["fs", "inspect", "home", "--shard", "0"]);
    assert!(inspected["shards"][0]["tables"]["inodes"].as_u64() >= Some(8), "{inspected}");
    assert_eq!(inspected["shards"][0]["format"], 1);
    bed.weft(&["fs", "inspect", "home", "--shard", "16"]).fails(2, &["no shard 16", "0 to 15"]);
    bed.weft(&["fs", "check", "nobody"]).fails(1, &["no file system 'nobody'", "weft fs list"]);
    let space = bed.json(&["fs", "df", "home", "--drives"]);
    let [size, taken] = ["size_bytes", "used_bytes"].map(|key| space["file_systems"][0][key].as_u64());
    assert!(taken > Some(20 << 20) && taken < size, "{space}");
    assert_eq!(space["drives"].as_array().map(Vec::len), Some(3), "{space}");

    bed.ok(&["node", "start", &first]);
    bed.await_health("healthy");
    bed.weft(&["fs", "rm", "home", "/team"]).fails(1, &["not empty", "--recursive"]);
    for nothing in ["", "/", "//", "/team/.", ".."] {
        bed.weft(&["fs", "rm", "home", "--recursive", nothing]).fails(2, &["no name that can be removed"]);
    }
    let before = used(&bed);
    assert!(bed.ok(&["fs", "rm", "home", "--recursive", "/team", "--dry-run"]).contains("6 names would be"));
    assert_eq!(names_of(&bed, "/"), ["after", "team"]);
    assert!(bed.ok(&["fs", "rm", "home", "--recursive", "/team"]).contains("6 names removed"));
    assert_eq!(names_of(&bed, "/"), ["after"]);
    wait_until("the space is given back", || used(&bed) + 30 * MIB as u64 <= before);
    bed.ok(&["down"]);
    bed.ok(&["up", "--detach"]);
    wait_until("the shards are served again", || !server(&bed).is_empty());
    assert_eq!(names_of(&bed, "/"), ["after"]);
    bed.ok(&["fs", "delete", "home", "--yes"]);
    bed.ok(&["down"]);
}

/// Drives of a new node take new files once the file system has grown; the files of before stay as they are.
#[test]
fn a_file_system_grows_into_a_new_node() {
    let bed = Bed::new("files-grow");
    bed.up(2, 1);
    bed.ok(&["fs", "create", "home"]);
    wait_until("the shards are served", || !server(&bed).is_empty());
    let content = sample(6 * MIB, 3);
    fs::write(bed.path("file"), &content).expect("written");
    bed.ok(&["fs", "put", "home", "file", "/old"]);
    let sets = |bed: &Bed| {
        let shown = bed.json(&["fs", "show", "home"]);
        shown["file_system"]["sets"].as_array().expect("a list").len()
    };
    let nothing = bed.weft(&["fs", "grow", "home"]);
    assert!(nothing.code == 0 && nothing.err.contains("uses all drives of its pool"), "{nothing:?}");
    let fabric = bed.json(&["status"])["fabric"].as_str().expect("an id").to_owned();
    bed.ok(&["drive", "format", "new.img", "--size", "256MiB", "--fabric-id", &fabric]);
    let (manager, listen) = (format!("127.0.0.1:{}", bed.port), format!("127.0.0.1:{}", bed.port + 20));
    let args = ["node", "run", "--name", "node-3", "--manager", &manager, "--listen", &listen];
    let node = bed.spawn(&[&args[..], &["--drive", "new.img"]].concat());
    let drives = |bed: &Bed| bed.json(&["drive", "list"])["drives"].as_array().expect("a list").clone();
    wait_until("its drive is there", || drives(&bed).len() == 3);
    assert!(bed.ok(&["fs", "grow", "home", "--dry-run"]).contains("would be made over"));
    assert_eq!(sets(&bed), 1);
    assert!(bed.ok(&["fs", "grow", "home"]).contains("are made over"));
    assert_eq!(sets(&bed), 2);
    let used = |bed: &Bed| {
        let of_node = |drive: &&serde_json::Value| drive["node"] == "node-3";
        drives(bed).iter().find(of_node).and_then(|drive| drive["usage"]["used_bytes"].as_u64()).unwrap_or(0)
    };
    let before = used(&bed);
    // Each has a few objects, and one group in three is on the new drive.
    for n in 0..8 {
        bed.ok(&["fs", "put", "home", "file", &format!("/new-{n}")]);
    }
    wait_until("the new drive has data", || used(&bed) >= before + MIB as u64);
    for name in ["/old", "/new-0", "/new-7"] {
        bed.ok(&["fs", "get", "home", name, "back", "--force"]);
        assert!(fs::read(bed.path("back")).expect("it is there") == content, "{name}");
    }
    assert!(bed.ok(&["fs", "check", "home"]).starts_with("sound: "));
    // The servers of names are others after a start, and make files there as well.
    bed.ok(&["down"]);
    assert_eq!(node.end("TERM"), Some(0));
    bed.ok(&["up", "--detach"]);
    let _node = bed.spawn(&[&args[..], &["--drive", "new.img"]].concat());
    bed.await_health("healthy");
    wait_until("the shards are served again", || !server(&bed).is_empty());
    bed.ok(&["fs", "put", "home", "file", "/later"]);
    bed.ok(&["fs", "rm", "home", "/old", "/new-0", "/later"]);
    assert!(bed.ok(&["fs", "check", "home"]).starts_with("sound: "));
    bed.ok(&["down"]);
}

/// A pool is filled with files: names can still be removed, and nothing new comes until there is space.
#[test]
fn files_are_removed_from_a_full_pool() {
    let bed = Bed::new("files-full");
    bed.up(3, 1);
    bed.ok(&["fs", "create", "home"]);
    wait_until("the shards are served", || !server(&bed).is_empty());
    let pieces: Vec<Vec<u8>> = [700_000, 4096].iter().map(|bytes| sample(*bytes, 7)).collect();
    for (n, piece) in pieces.iter().enumerate() {
        fs::write(bed.path(&format!("file{n}")), piece).expect("written");
    }
    bed.ok(&["fs", "mkdir", "home", "/kept"]);
    // Large files until one does not fit, and small ones until nothing does.
    let mut put = 0;
    for (n, name) in ["file0", "file1"].iter().enumerate() {
        while bed.weft(&["fs", "put", "home", name, &format!("/{n}-{put}")]).code == 0 {
            put += 1;
        }
    }
    assert!(put > 10, "{put} files fit");
    wait_until("nothing new is taken", || {
        bed.weft(&["fs", "mkdir", "home", &format!("/{put}-new")]).code != 0
    });
    bed.weft(&["fs", "mkdir", "home", "/more"]).fails(1, &["/more: no space is left", "remove something"]);
    bed.ok(&["fs", "get", "home", "/0-0", "back"]);
    assert!(fs::read(bed.path("back")).expect("it is there") == pieces[0]);
    // Many removals: each is an append, and none takes what is not given back.
    bed.ok(&["fs", "rm", "home", "/kept"]);
    let listed = names_of(&bed, "/");
    for name in listed.iter().filter(|name| name.starts_with("0-") || name.starts_with("1-")) {
        bed.ok(&["fs", "rm", "home", "--recursive", &format!("/{name}")]);
    }
    wait_until("there is space again", || bed.weft(&["fs", "mkdir", "home", "/again"]).code == 0);
    // Data are given back some seconds after the names.
    wait_until("there is space for data", || bed.weft(&["fs", "put", "home", "file0", "/again/"]).code == 0);
    bed.ok(&["down"]);
}

fn names_of(bed: &Bed, path: &str) -> Vec<String> {
    let listed = bed.json(&["fs", "ls", "home", path]);
    let files = listed["files"].as_array().expect("a list").clone();
    files.iter().filter_map(|file| file["name"].as_str().map(str::to_owned)).collect()
}
