//! A loss is accepted on a real fabric: one copy is from long ago, the other one is gone for good.

mod bed;

use bed::{Bed, sample, wait_until};
use serde_json::Value;
use std::fs;

const MIB: usize = 1 << 20;

fn drive_of(bed: &Bed, node: &str) -> String {
    let shown = bed.json(&["node", "show", node]);
    shown["drives"][0]["id"].as_str().expect("an identifier").to_owned()
}

#[test]
fn an_older_copy_serves_once_a_person_has_said_so() {
    let bed = Bed::new("accept");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "16MiB"]);
    let (first, second) = (sample(16 * MIB, 21), sample(16 * MIB, 22));
    fs::write(bed.path("first"), &first).expect("written");
    fs::write(bed.path("second"), &second).expect("written");
    bed.ok(&["volume", "import", "data", "first"]);
    let (old, gone) = (drive_of(&bed, "node-1"), drive_of(&bed, "node-2"));
    bed.ok(&["down"]);
    let image = |n: u8| bed.fabric().join(format!("nodes/node-{n}/drive-1.img"));
    fs::copy(image(1), bed.path("before")).expect("copied");
    bed.ok(&["up", "--detach"]);
    bed.await_health("healthy");
    bed.ok(&["volume", "import", "data", "second", "--force"]);
    bed.ok(&["down"]);
    // What is left of the one is a copy from before; of the other nothing.
    fs::copy(bed.path("before"), image(1)).expect("copied");
    fs::remove_file(image(2)).expect("removed");
    bed.weft(&["up", "--detach"]);
    wait_until("it is told", || bed.ok(&["status"]).contains("holds less than it had acknowledged"));

    // Nothing is given up by a slip: not without the word for it, nor with one of the two drives named.
    let repair = |args: &[&str]| bed.weft(&[&["volume", "repair", "data"], args].concat());
    let accept = "--accept-data-loss";
    let (older, destroyed) = (format!("--older {old}"), format!("--destroyed {gone}"));
    repair(&[]).fails(4, &["do not answer", &older, &destroyed]);
    repair(&[accept, "--yes"]).fails(4, &[&old, &gone, "bring them back"]);
    repair(&[accept, "--yes", "--destroyed", &gone]).fails(4, &[&older]);
    repair(&[accept, "--yes", "--older", &old]).fails(4, &[&destroyed]);
    repair(&[accept, "--yes", "--destroyed", &old, "--older", &old]).fails(2, &["at the same time"]);
    repair(&[accept, "--yes", "--older", &gone, "--destroyed", &old])
        .fails(4, &["was not refused for holding older"]);
    repair(&["--older", &old]).fails_as_usage("--accept-data-loss");
    let named = [accept, "--older", &old, "--destroyed", &gone];
    let rehearse = || repair(&[&named[..], &["--dry-run", "--json"]].concat());
    wait_until("no lease can be in force", || rehearse().code == 0);
    let rehearsal: Value = serde_json::from_str(&rehearse().out).expect("a document");
    assert_eq!((&rehearsal["dry_run"], &rehearsal["older"][0]), (&true.into(), &old.as_str().into()));
    repair(&named).fails(4, &["There is no terminal"]);
    assert_ne!(bed.json(&["status"])["health"], "healthy", "nothing was changed");

    let said = repair(&[&named[..], &["--yes"]].concat());
    assert_eq!(said.code, 0, "{said:?}");
    let taken = [
        format!("drive {gone} declared destroyed"),
        format!("drive {old} taken as it is, older than it was"),
        "which it goes on with".to_owned(),
        "reads as it was when that copy fell behind".to_owned(),
        "at most 16 MiB of volumes data lost".to_owned(),
    ];
    for words in &taken {
        assert!(said.out.contains(words), "'{words}' is not in: {}", said.out);
    }
    // A manager that dies right then remembers what was accepted.
    bed.ok(&["manager", "stop", "--kill"]);
    bed.ok(&["manager", "start"]);
    wait_until("it serves", || bed.weft(&["volume", "export", "data", "back", "--force"]).code == 0);
    assert!(fs::read(bed.path("back")).expect("read") == first, "the data of before, whole");
    let events = bed.ok(&["events", "--volume", "data"]);
    assert!(events.contains("accept-loss") || events.contains("loss"), "{events}");
    // It can be written, and a new drive makes it whole again.
    bed.ok(&["volume", "import", "data", "second", "--force"]);
    bed.ok(&["volume", "export", "data", "back", "--force"]);
    assert!(fs::read(bed.path("back")).expect("read") == second);
}
