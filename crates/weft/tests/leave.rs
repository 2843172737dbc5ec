//! Drives and nodes leave a local fabric: emptied under protection, replaced, forgotten.

mod bed;

use bed::{Bed, sample, wait_until};
use serde_json::Value;
use std::fs;

const MIB: usize = 1 << 20;

/// The identifier of a node's drive.
fn drive_of(bed: &Bed, node: &str, n: usize) -> String {
    let shown = bed.json(&["node", "show", node]);
    shown["drives"][n]["id"].as_str().expect("an identifier").to_owned()
}

/// Copies that a drive is listed for.
fn copies(drive: &Value) -> u64 {
    ["in_sync_groups", "syncing_groups", "out_groups"]
        .iter()
        .map(|k| drive[k].as_u64().expect("a count"))
        .sum()
}

fn assert_holds(bed: &Bed, expected: &[u8]) {
    let file = bed.path("back");
    bed.ok(&["volume", "export", "data", file.to_str().expect("a plain path"), "--sparse", "--force"]);
    assert!(fs::read(file).expect("it was written")[..expected.len()] == *expected, "the data is another");
}

#[test]
fn a_node_is_emptied_and_forgotten_with_its_data_in_use() {
    let bed = Bed::new("leave");
    bed.up(3, 1);
    bed.ok(&["volume", "create", "data", "--size", "32MiB"]);
    let data = sample(20 * MIB, 7);
    fs::write(bed.path("data"), &data).expect("written");
    bed.ok(&["volume", "import", "data", "data"]);

    bed.weft(&["node", "remove", "node-2", "--yes"]).fails(4, &["is up", "weft node stop node-2"]);
    bed.weft(&["drive", "remove", &drive_of(&bed, "node-2", 0), "--yes"]).fails(4, &["weft drive evacuate"]);
    let rehearsal = bed.json(&["node", "evacuate", "node-2", "--dry-run"]);
    assert_eq!(rehearsal["dry_run"], true);
    assert!(rehearsal["copies"].as_array().is_some_and(|c| !c.is_empty()), "{rehearsal}");
    assert_eq!(bed.json(&["node", "show", "node-2"])["drives"][0]["state"], "active", "nothing was changed");

    let said = bed.ok(&["node", "evacuate", "node-2"]);
    assert!(said.contains("is being emptied") && said.contains("nothing is left"), "{said}");
    let shown = bed.json(&["node", "show", "node-2"]);
    assert_eq!((copies(&shown["drives"][0]), &shown["drives"][0]["state"]), (0, &"draining".into()));
    assert_eq!(bed.json(&["status"])["health"], "healthy");
    assert_holds(&bed, &data);
    // Two nodes hold everything now: neither can be emptied.
    bed.weft(&["node", "evacuate", "node-1"]).fails(4, &["no other drive can take", "add a drive or a node"]);

    bed.ok(&["node", "stop", "node-2"]);
    wait_until("the node is down", || bed.weft(&["node", "remove", "node-2", "--dry-run"]).code == 0);
    bed.ok(&["node", "remove", "node-2", "--yes"]);
    assert_eq!(bed.json(&["node", "list"])["nodes"].as_array().map(Vec::len), Some(2));
    bed.await_health("healthy");
    assert_holds(&bed, &data);
}

#[test]
fn a_drive_takes_the_place_of_another_and_is_asked_for_clearly() {
    let bed = Bed::new("replace");
    bed.up(3, 2);
    bed.ok(&["volume", "create", "data", "--size", "32MiB"]);
    let data = sample(20 * MIB, 8);
    fs::write(bed.path("data"), &data).expect("written");
    bed.ok(&["volume", "import", "data", "data", "--force"]);
    let (old, new) = (drive_of(&bed, "node-1", 0), drive_of(&bed, "node-1", 1));
    bed.weft(&["drive", "replace", &old, "--with", &old]).fails(2, &["cannot take its own place"]);
    bed.weft(&["drive", "evacuate", "zzz"]).fails(1, &["no drive 'zzz'"]);

    bed.ok(&["drive", "evacuate", &new]);
    bed.ok(&["drive", "evacuate", &new, "--cancel"]);
    bed.ok(&["drive", "replace", &old, "--with", &new]);
    let drives = bed.json(&["drive", "list"]);
    let drive = |id: &str| {
        drives["drives"]
            .as_array()
            .and_then(|d| d.iter().find(|d| d["id"] == id))
            .expect("it is listed")
            .clone()
    };
    assert_eq!(copies(&drive(&old)), 0);
    assert!(copies(&drive(&new)) > 0);
    assert_eq!(bed.ok(&["drive", "remove", &old, "--yes"]), format!("drive {} removed\n", &old[..8]));
    assert_holds(&bed, &data);
}
