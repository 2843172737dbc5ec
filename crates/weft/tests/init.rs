//! A fabric is made by a command of its own: a manager without its store makes none.

mod bed;

use bed::{Bed, Running, wait_until};
use std::fs;
use weft_manager::EmbeddedStore;

/// The arguments of a manager on this store.
fn run_on(bed: &Bed, store: &str) -> Vec<String> {
    let listen = format!("127.0.0.1:{}", bed.port);
    ["manager", "run", "--store", store, "--listen", &listen].map(String::from).into()
}

fn run(bed: &Bed, store: &str, more: &[&str]) -> bed::Said {
    let args = run_on(bed, store);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    bed.weft(&[&args, more].concat())
}

/// A manager that serves, and its address.
fn start(bed: &Bed, store: &str) -> (Running, String) {
    let args = run_on(bed, store);
    let running = bed.spawn(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let addr = format!("127.0.0.1:{}", bed.port);
    wait_until("the manager serves", || bed.weft(&["--fabric", &addr, "fabric", "show"]).code == 0);
    (running, addr)
}

#[test]
fn a_manager_without_its_store_makes_no_fabric() {
    let bed = Bed::new("init-none");
    run(&bed, "lib/map.redb", &[]).fails(
        4,
        &[
            "there is no manager's store at lib/map.redb: the folder lib does not exist",
            "is its disk mounted?",
            "`weft fabric init lib/map.redb`",
            "`weft fabric recover lib/map.redb --drives",
            "`weft map restore BACKUP lib/map.redb",
        ],
    );
    assert!(!bed.path("lib").exists(), "nothing lies in the place of a disk that is not mounted");
    fs::create_dir_all(bed.path("lib/lost+found")).expect("made");
    run(&bed, "lib/map.redb", &[]).fails(4, &["the folder lib holds lost+found"]);
    std::os::unix::fs::symlink("away/map.redb", bed.path("lib/link.redb")).expect("linked");
    run(&bed, "lib/link.redb", &[]).fails(4, &["it is a link to away/map.redb, which is not there"]);

    // One that was cut to nothing, and one to which nothing was ever committed.
    fs::write(bed.path("lib/map.redb"), "").expect("written");
    run(&bed, "lib/map.redb", &[]).fails(4, &["lib/map.redb holds no fabric", "weft fabric recover"]);
    fs::remove_file(bed.path("lib/map.redb")).expect("removed");
    drop(EmbeddedStore::open_or_make(bed.path("lib/map.redb")).expect("made"));
    let id = "0f6c3a52-7c5e-4f6b-9d0e-1a2b3c4d5e6f";
    run(&bed, "lib/map.redb", &["--fabric-id", id])
        .fails(4, &["lib/map.redb holds no fabric", &format!("fabric {id} is expected"), "weft fabric init"]);
    bed.weft(&["fabric", "init", "lib/map.redb"]).fails(4, &["exists already", "weft fabric recover"]);
}

#[test]
fn a_fabric_is_made_once() {
    let bed = Bed::new("init-once");
    let said = bed.ok(&["fabric", "init", "lib/map.redb", "--dry-run"]);
    assert!(said.contains("would be made in lib/map.redb") && !bed.path("lib").exists(), "{said}");
    let made = bed.json(&["fabric", "init", "lib/map.redb"]);
    let id = made["fabric"].as_str().expect("its identity").to_owned();
    let store = fs::read(bed.path("lib/map.redb")).expect("it is there");
    assert_eq!(fs::read_dir(bed.path("lib")).expect("a folder").count(), 1, "nothing is left over");
    bed.weft(&["fabric", "init", "lib/map.redb"])
        .fails(4, &["exists already", "weft manager run --store lib/map.redb"]);
    assert!(fs::read(bed.path("lib/map.redb")).expect("it is there") == store, "untouched");
    let (manager, addr) = start(&bed, "lib/map.redb");
    assert_eq!(bed.json(&["--fabric", &addr, "fabric", "show"])["fabric"], *id);
    assert!(bed.ok(&["--fabric", &addr, "events"]).contains("fabric-made"));
    assert_eq!(manager.end("TERM"), Some(0));
    let other = "0f6c3a52-7c5e-4f6b-9d0e-1a2b3c4d5e6f";
    run(&bed, "lib/map.redb", &["--fabric-id", other])
        .fails(1, &[&format!("belongs to fabric {id}, expected {other}"), "name the store of this fabric"]);

    // Where the backups of a map lie, there was a fabric.
    fs::create_dir_all(bed.path("lib/backups")).expect("made");
    fs::write(bed.path("lib/backups/map-00000000000000000007.weftmap"), "x").expect("written");
    fs::remove_file(bed.path("lib/map.redb")).expect("removed");
    let newest = "lib/backups/map-00000000000000000007.weftmap";
    bed.weft(&["fabric", "init", "lib/map.redb"]).fails(4, &["there was a fabric", newest]);
    run(&bed, "lib/map.redb", &[]).fails(4, &["the folder lib holds backups", "weft map restore", newest]);
    let said = bed.ok(&["fabric", "init", "new/map.redb", "--fabric-id", other]);
    for step in ["made, in new/map.redb", "weft manager run --store", "weft drive format", "weft node run"] {
        assert!(said.contains(step), "{said}");
    }
    let (_manager, addr) = start(&bed, "new/map.redb");
    assert_eq!(bed.json(&["--fabric", &addr, "fabric", "show"])["fabric"], *other);
}
