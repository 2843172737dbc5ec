//! A fabric is checked, its map backed up and restored, and a drive comes back as an older copy of itself.

mod bed;

use bed::{Bed, sample, wait_until};
use std::fs;
use weft_wire::collected::{decode_collected, encode_collected};

const MIB: usize = 1 << 20;

fn drives(bed: &Bed) -> Vec<String> {
    let image = |n| bed.fabric().join(format!("nodes/node-{n}/drive-1.img")).display().to_string();
    (1..=3).map(image).collect()
}

/// `weft map restore` of a backup into the fabric's folder, with all drives.
fn restore(bed: &Bed, backup: &str, more: &[&str]) -> bed::Said {
    let folder = bed.fabric().display().to_string();
    let drives = drives(bed);
    let mut args = vec!["map", "restore", backup, &folder, "--drives"];
    args.extend(drives.iter().map(String::as_str));
    args.extend(more);
    bed.weft(&args)
}

#[test]
fn a_map_is_backed_up_and_only_restored_where_nobody_knows_more() {
    let bed = Bed::new("backup");
    bed.up(3, 1);
    bed.ok(&["volume", "create", "data", "--size", "32MiB"]);
    let data = sample(16 * MIB, 3);
    fs::write(bed.path("file"), &data).expect("written");
    bed.ok(&["volume", "import", "data", "file"]);
    wait_until("sessions are swept", || bed.json(&["session", "list"])["sessions"] == serde_json::json!([]));
    bed.ok(&["map", "backup", "old.weftmap"]);
    bed.weft(&["map", "backup", "old.weftmap"]).fails(4, &["exists", "--force"]);
    assert!(bed.ok(&["map", "verify", "old.weftmap"]).contains("volumes data intact"));
    assert_eq!(bed.json(&["map", "diff", "old.weftmap"])["changes"], serde_json::json!([]));
    bed.ok(&["volume", "create", "more", "--size", "8MiB"]);
    let changes = bed.ok(&["map", "diff", "old.weftmap"]);
    assert!(changes.contains("is new ('more'") && changes.lines().count() >= 2, "{changes}");
    bed.ok(&["map", "backup", "new.weftmap"]);

    // Nothing that the drives or the store know is undone.
    restore(&bed, "new.weftmap", &[]).fails(4, &["in use by another manager", "weft down"]);
    bed.ok(&["down"]);
    restore(&bed, "old.weftmap", &[]).fails(4, &["to go back would undo", "volume"]);
    let store = bed.fabric().join("manager/map.redb");
    fs::remove_file(&store).expect("it was there");
    restore(&bed, "old.weftmap", &[]).fails(4, &["the drives know more", "weft fabric recover"]);
    let mut damaged = fs::read(bed.path("new.weftmap")).expect("read");
    damaged[300] ^= 1;
    fs::write(bed.path("damaged"), &damaged).expect("written");
    restore(&bed, "damaged", &[]).fails(1, &["is damaged", "weft fabric recover"]);
    restore(&bed, "file", &[]).fails(1, &["no backup of a fabric map"]);
    let folder = bed.fabric().display().to_string();
    let one = drives(&bed).remove(0);
    bed.weft(&["map", "restore", "new.weftmap", &folder, "--drives", &one])
        .fails(4, &["were not named", "--drives"]);
    assert!(!store.exists(), "nothing was written");

    let rehearsal = restore(&bed, "new.weftmap", &["--dry-run"]);
    assert!(rehearsal.code == 0 && rehearsal.out.contains("would be changed"), "{rehearsal:?}");
    assert!(!store.exists(), "a dry run writes nothing");
    let done = restore(&bed, "new.weftmap", &[]);
    assert!(done.code == 0 && store.exists(), "{done:?}");
    bed.ok(&["up", "--detach"]);
    bed.await_health("healthy");
    bed.ok(&["volume", "export", "data", "back"]);
    assert!(fs::read(bed.path("back")).expect("read")[..data.len()] == data[..], "the data is there");
    wait_until("the fabric is sound", || bed.weft(&["fabric", "check"]).code == 0);
    bed.ok(&["node", "stop", "node-2", "--kill"]);
    let checked = bed.weft(&["fabric", "check", "--json"]);
    assert!(checked.code == 1 && checked.out.contains("\"sound\": false"), "{checked:?}");
    assert!(checked.out.contains("node 'node-2'") && checked.err.contains("not sound"), "{checked:?}");
    bed.weft(&["fabric", "set", "--rebuild-after-ms", "0"]).fails(2, &["1000", "0 ms"]);
    bed.weft(&["session", "end", "99999", "--yes"]).fails(1, &["no session"]);
    bed.weft(&["volume", "repair", "data"]).fails(4, &["nothing to accept"]);
}

#[test]
fn what_the_manager_backs_up_by_itself_restores() {
    let bed = Bed::new("own-backup");
    bed.up(3, 1);
    bed.ok(&["volume", "create", "data", "--size", "32MiB"]);
    let data = sample(16 * MIB, 4);
    fs::write(bed.path("file"), &data).expect("written");
    bed.ok(&["volume", "import", "data", "file"]);
    bed.ok(&["manager", "stop"]);
    // The same manager, with backups every second instead of every hour, and a file where they should go.
    let (store, folder) = (bed.fabric().join("manager/map.redb"), bed.fabric().join("manager/backups"));
    assert!(!folder.exists(), "the first one is taken after a minute");
    fs::write(&folder, "in the way").expect("written");
    let addr = format!("127.0.0.1:{}", bed.port);
    let (store_arg, socket) = (store.display().to_string(), bed.fabric().join("run/manager.sock"));
    let socket = socket.display().to_string();
    let run = ["manager", "run", "--store", &store_arg, "--listen", &addr, "--socket", &socket];
    bed.weft(&[&run[..], &["--backup-every", "10ms"]].concat()).fails_as_usage("at least 1 s");
    let manager = bed.spawn(&[&run[..], &["--backup-every", "1s"]].concat());
    let events = || bed.weft(&["events"]).out;
    wait_until("it is told", || events().contains("map-backup-failed"));
    assert!(events().contains(&format!("cannot make the folder {}", folder.display())), "{}", events());
    fs::remove_file(&folder).expect("removed");
    wait_until("it is over", || events().contains("map-backup-kept"));
    bed.await_health("healthy");
    wait_until("sessions are swept", || bed.json(&["session", "list"])["sessions"] == serde_json::json!([]));
    let newest = || {
        let names = fs::read_dir(&folder).expect("it is there").map(|e| e.expect("readable").path());
        names.max().expect("there is one").display().to_string()
    };
    let is_newest = || bed.json(&["map", "diff", &newest()])["changes"] == serde_json::json!([]);
    wait_until("what has changed since is backed up", is_newest);
    assert!(bed.ok(&["map", "verify", &newest()]).contains("volumes data intact"));
    assert_eq!(manager.end("TERM"), Some(0));
    bed.ok(&["down"]);
    fs::remove_file(&store).expect("it was there");
    let done = restore(&bed, &newest(), &[]);
    assert!(done.code == 0 && store.exists(), "{done:?}");
    bed.ok(&["up", "--detach"]);
    bed.await_health("healthy");
    bed.ok(&["volume", "export", "data", "back"]);
    assert!(fs::read(bed.path("back")).expect("read")[..data.len()] == data[..], "the data is there");
}

/// `weft fabric recover` or `weft map restore`, to the store's own file.
fn recover_file(bed: &Bed, words: &[&str], more: &[&str]) -> bed::Said {
    let store = bed.fabric().join("manager/map.redb").display().to_string();
    let drives = drives(bed);
    let drives: Vec<&str> = drives.iter().map(String::as_str).collect();
    bed.weft(&[words, &[&store, "--drives"], &drives, more].concat())
}

/// The files beside the store's own, by name.
fn beside_the_store(bed: &Bed) -> Vec<String> {
    let entries = fs::read_dir(bed.fabric().join("manager")).expect("it is there");
    let mut names: Vec<String> =
        entries.map(|e| e.expect("readable").file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name != "map.redb" && name != "backups");
    names.sort();
    names
}

#[test]
fn a_damaged_store_is_replaced_where_it_is_and_kept_under_another_name() {
    let bed = Bed::new("replace");
    bed.up(3, 1);
    bed.ok(&["volume", "create", "data", "--size", "8MiB"]);
    // A node that stops has its drives leave their groups: the backup has to know of that.
    for node in ["node-1", "node-2", "node-3"] {
        bed.ok(&["node", "stop", node]);
    }
    bed.ok(&["map", "backup", "now.weftmap"]);
    bed.ok(&["down"]);
    let store = bed.fabric().join("manager/map.redb");
    let sound = fs::read(&store).expect("read");
    let mut damaged = sound.clone();
    damaged[4096..].fill(0x5a);
    for (words, found) in [
        (&["fabric", "recover"][..], &damaged),
        (&["fabric", "recover"], &sound),
        (&["fabric", "recover"], &Vec::new()),
        (&["fabric", "recover"], &b"something else".to_vec()),
        (&["map", "restore", "now.weftmap"], &damaged),
    ] {
        fs::write(&store, found).expect("written");
        let before = beside_the_store(&bed);
        let rehearsal = recover_file(&bed, words, &["--dry-run"]);
        assert_eq!(rehearsal.code, 0, "{words:?}: {rehearsal:?}");
        assert!(rehearsal.out.contains("would be written to"), "{rehearsal:?}");
        assert!(rehearsal.out.contains("the old store would be kept as "), "{rehearsal:?}");
        assert!(fs::read(&store).expect("read") == *found && beside_the_store(&bed) == before, "untouched");
        let done = recover_file(&bed, words, &[]);
        assert_eq!(done.code, 0, "{words:?}: {done:?}");
        let kept = done.out.lines().find_map(|line| line.strip_prefix("the old store is kept as "));
        let kept = kept.unwrap_or_else(|| panic!("where it is, is said: {done:?}"));
        assert!(fs::read(kept).expect("it is there") == *found, "{words:?}: what was there is kept");
        assert_eq!(
            beside_the_store(&bed).len(),
            before.len() + 1,
            "nothing is overwritten, nothing left over"
        );
    }
    bed.ok(&["up", "--detach"]);
    bed.await_health("healthy");
    bed.ok(&["volume", "show", "data"]);
    bed.ok(&["down"]);

    // What is no store and must not be moved away.
    let one = drives(&bed).remove(0);
    bed.weft(&["fabric", "recover", &one, "--drives", &one]).fails(4, &["is one of the drives", "STORE"]);
    bed.weft(&["map", "restore", "now.weftmap", "now.weftmap", "--drives", &one])
        .fails(4, &["is the backup itself"]);
    bed.weft(&["fabric", "recover", "/dev/null", "--drives", &one]).fails(4, &["is no file"]);
    let under = store.join("map.redb").display().to_string();
    bed.weft(&["fabric", "recover", &under, "--drives", &one]).fails(1, &["map.redb is a file", "folder"]);
}

/// The file that `weft fabric collect` writes about one drive.
fn collect(bed: &Bed, file: &str, drive: &str) {
    let said = bed.ok(&["fabric", "collect", file, "--drives", drive, "--force"]);
    assert!(said.contains(&format!("written to {file}")) && said.contains("--from FILE"), "{said}");
}

/// What was collected, as if at another time.
fn at_time(bed: &Bed, file: &str, taken_ms: u64) {
    let (head, found) = decode_collected(&fs::read(bed.path(file)).expect("read")).expect("it is one");
    let bytes = encode_collected(head.fabric, &head.machine, taken_ms, &found);
    fs::write(bed.path(file), bytes).expect("written");
}

/// Files that are damaged, foreign, mixed or out of date, and drives that are missing.
fn recovery_refuses_what_it_cannot_use(bed: &Bed, drives: &[String]) {
    let recover = |more: &[&str]| bed.weft(&[&["fabric", "recover", "new/map.redb"], more].concat());
    recover(&[]).fails_as_usage("--drives");
    recover(&["--drives", &drives[2], "--from", "one", "old-one"]).fails(4, &["old-one is out of date"]);
    recover(&["--drives", &drives[0], "--from", "old-one"]).fails(4, &["old-one is out of date", "collect"]);
    let behind = recover(&["--drives", &drives[2], "--from", "one", "old-two", "--dry-run"]);
    assert!(behind.code == 0 && behind.err.contains("warning: old-two knows map"), "{behind:?}");
    let without = recover(&["--drives", &drives[2], "--from", "one", "--dry-run"]);
    assert!(
        without.err.contains("of node 'node-2'") && without.err.contains("is not at hand"),
        "{without:?}"
    );
    let mut damaged = fs::read(bed.path("one")).expect("read");
    damaged[300] ^= 1;
    fs::write(bed.path("damaged"), &damaged).expect("written");
    recover(&["--from", "damaged", "two"])
        .fails(1, &["damaged cannot be used: it is damaged", "copy it once more"]);
    recover(&["--from", "now.weftmap"]).fails(1, &["does not hold what `weft fabric collect` writes"]);
    bed.ok(&[
        "drive",
        "format",
        "other",
        "--fabric-id",
        "0f6c3a52-7c5e-4f6b-9d0e-1a2b3c4d5e6f",
        "--size",
        "128MiB",
    ]);
    recover(&["--drives", "other", "--from", "one"])
        .fails(4, &["other belongs to fabric 0f6c3a52", "only those"]);
    bed.weft(&["fabric", "collect", "mixed", "--drives", "other", &drives[0]])
        .fails(4, &["belongs to fabric"]);
    fs::copy(bed.path("two"), bed.path("aged")).expect("copied");
    at_time(bed, "aged", 1_700_000_000_000);
    recover(&["--from", "one", "aged"]).fails(4, &["aged was written on", "--accept-old"]);
    assert_eq!(recover(&["--from", "one", "aged", "--accept-old", "--dry-run"]).code, 0);
    assert!(!bed.path("new").exists(), "nothing was written");
}

#[test]
fn drives_on_several_machines_are_recovered_one_after_the_other() {
    let bed = Bed::new("several");
    bed.up(3, 1);
    bed.ok(&["volume", "create", "data", "--size", "32MiB"]);
    let data = sample(16 * MIB, 5);
    fs::write(bed.path("file"), &data).expect("written");
    bed.ok(&["volume", "import", "data", "file"]);
    let drives = drives(&bed);
    bed.weft(&["fabric", "collect", "one", "--drives", &drives[0]])
        .fails(1, &["stop the node that serves it"]);
    bed.ok(&["down"]);
    collect(&bed, "old-one", &drives[0]);
    collect(&bed, "old-two", &drives[1]);
    bed.ok(&["up", "--detach"]);
    bed.await_health("healthy");
    bed.ok(&["volume", "create", "more", "--size", "8MiB"]);
    wait_until("sessions are swept", || bed.json(&["session", "list"])["sessions"] == serde_json::json!([]));
    bed.ok(&["map", "backup", "now.weftmap"]);
    bed.ok(&["down"]);

    let rehearsal = bed.ok(&["fabric", "collect", "one", "--drives", &drives[0], "--dry-run"]);
    assert!(rehearsal.contains("would be written to one") && !bed.path("one").exists(), "{rehearsal}");
    collect(&bed, "one", &drives[0]);
    bed.weft(&["fabric", "collect", "one", "--drives", &drives[0]]).fails(4, &["one exists", "--force"]);
    let two = bed.weft(&["fabric", "collect", "-", "--drives", &drives[1]]);
    assert_eq!(two.code, 0, "{two:?}");
    fs::write(bed.path("two"), two.out).expect("written");

    recovery_refuses_what_it_cannot_use(&bed, &drives);
    // The store of a machine that has none of the other drives.
    let recover = |more: &[&str]| bed.weft(&[&["fabric", "recover", "new/map.redb"], more].concat());
    let all = ["--drives", &drives[2], "--from", "one", "two"];
    let rehearsal = recover(&[&all[..], &["--dry-run"]].concat());
    assert!(rehearsal.code == 0 && !rehearsal.err.contains("not at hand"), "{rehearsal:?}");
    let restored = bed.weft(&[&["map", "restore", "now.weftmap", "new/map.redb"], &all[..]].concat());
    assert!(restored.code == 0 && restored.out.contains("written to new/map.redb"), "{restored:?}");
    let done = recover(&all);
    assert!(done.code == 0 && done.out.contains("volumes data, more written"), "{done:?}");
    assert!(done.out.contains("the old store is kept as"), "{done:?}");

    fs::copy(bed.path("new/map.redb"), bed.fabric().join("manager/map.redb")).expect("copied");
    bed.ok(&["up", "--detach"]);
    bed.await_health("healthy");
    bed.ok(&["volume", "export", "data", "back"]);
    assert!(fs::read(bed.path("back")).expect("read")[..data.len()] == data[..], "the data is there");
    wait_until("the fabric is sound", || bed.weft(&["fabric", "check"]).code == 0);
}

#[test]
fn a_drive_file_from_before_is_noticed_and_brought_up_to_date() {
    let bed = Bed::new("older");
    bed.up(3, 1);
    bed.ok(&["volume", "create", "data", "--size", "32MiB"]);
    let (first, second) = (sample(16 * MIB, 7), sample(16 * MIB, 8));
    fs::write(bed.path("first"), &first).expect("written");
    fs::write(bed.path("second"), &second).expect("written");
    bed.ok(&["volume", "import", "data", "first"]);
    bed.ok(&["down"]);
    let drive = &drives(&bed)[0];
    fs::copy(drive, bed.path("before")).expect("copied");
    bed.ok(&["up", "--detach"]);
    bed.await_health("healthy");
    bed.ok(&["volume", "import", "data", "second", "--force"]);
    // At once: what no renewal of a lease has told yet, a node says when it stops.
    bed.ok(&["down"]);
    fs::copy(bed.path("before"), drive).expect("copied");
    bed.ok(&["up", "--detach"]);
    let events = || bed.ok(&["events"]);
    wait_until("it is told", || events().contains("holds less than it had acknowledged"));
    assert!(events().contains("fabric-stop"), "the manager knew that all nodes were about to stop");
    for _ in 0..3 {
        bed.ok(&["volume", "export", "data", "back", "--force"]);
        let found = fs::read(bed.path("back")).expect("read");
        assert!(found[..second.len()] == second[..], "what was acknowledged is read{}", bed.logs());
    }
    bed.await_health("healthy");
    bed.ok(&["volume", "export", "data", "back", "--force"]);
    assert!(fs::read(bed.path("back")).expect("read")[..second.len()] == second[..]);
    wait_until("the fabric is sound", || bed.weft(&["fabric", "check"]).code == 0);
}
