//! A fabric that explains itself: what is wrong, since when, what happened and who did it; with real processes.

mod bed;

use bed::{Bed, wait_until};
use serde_json::Value;

/// The trouble of this kind, if it is there.
fn trouble(status: &Value, kind: &str) -> Option<Value> {
    status["troubles"].as_array().expect("a list").iter().find(|t| t["kind"] == kind).cloned()
}

fn whats(events: &Value) -> Vec<String> {
    let events = events["events"].as_array().expect("a list");
    events.iter().map(|e| e["what"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_dead_node_a_dead_manager_and_what_is_said_of_them() {
    let bed = Bed::new("explain");
    bed.up(3, 1);
    bed.ok(&["volume", "create", "data", "--size", "64MiB"]);
    assert_eq!(bed.json(&["status"])["troubles"].as_array().map(Vec::len), Some(0));
    bed.ok(&["node", "stop", "node-2", "--kill"]);
    wait_until("it is left out of its groups", || {
        let found = trouble(&bed.json(&["status"]), "node-gone");
        found.is_some_and(|t| {
            t["doing"].as_array().is_some_and(|d| d.iter().any(|d| d["waits_for"] == "return"))
        })
    });
    let status = bed.json(&["status"]);
    let gone = trouble(&status, "node-gone").expect("it is told");
    assert_eq!((&gone["severity"], &gone["node"]), (&"degraded".into(), &"node-2".into()));
    assert_eq!(gone["volumes"][0]["volume"], "data", "{gone}");
    assert_eq!(gone["advice"][0]["command"], "weft node start node-2", "{gone}");
    assert!(trouble(&status, "copies-missing").is_some(), "{status}");
    let text = bed.ok(&["status"]);
    for part in ["DEGRADED node 'node-2' is down", " ago\n", "  waits    ", "weft node start node-2", "LEVEL"]
    {
        assert!(text.contains(part), "'{part}' is not in:\n{text}");
    }

    // A manager that has just begun writes down what it finds once it has heard of everyone: two leases and a second.
    std::thread::sleep(std::time::Duration::from_secs(6));
    // Without the manager: what goes on, which processes run, and how to go on.
    let before = bed.json(&["events"]);
    bed.ok(&["manager", "stop", "--kill"]);
    let said = bed.weft(&["status"]);
    assert_eq!(said.code, 3, "{said:?}");
    for part in [
        "without a manager",
        "2 of 3 nodes serve",
        "node-2",
        "it does not run",
        "you can",
        "weft manager start",
    ] {
        assert!(said.out.contains(part), "'{part}' is not in:\n{}", said.out);
    }
    assert!(said.err.contains("no fabric answers") && said.err.contains("hint: "), "{}", said.err);
    let said = bed.weft(&["status", "--json"]);
    let document: Value = serde_json::from_str(&said.out).expect("a document");
    assert_eq!((said.code, &document["op"]), (3, &"status-without-manager".into()));
    let serving = |n: usize| &document["nodes"][n]["serving"];
    assert_eq!(
        (serving(0), serving(1), serving(2)),
        (&true.into(), &Value::Null, &true.into()),
        "{document}"
    );
    assert_eq!(document["manager"]["pid"], Value::Null);

    // What happened before is known afterwards, and since when.
    bed.ok(&["manager", "start"]);
    let after = bed.json(&["events"]);
    let (old, new) =
        (before["events"].as_array().expect("a list"), after["events"].as_array().expect("a list"));
    assert_eq!(new[..old.len()], old[..], "they are all there");
    assert_eq!(new[old.len()]["what"], "manager-started");
    assert_eq!(new[old.len()]["seq"], old.len() + 1);
    wait_until("the node is known to be gone", || trouble(&bed.json(&["status"]), "node-gone").is_some());
    assert_eq!(trouble(&bed.json(&["status"]), "node-gone").expect("it is")["since"], gone["since"]);

    let made = bed.json(&["events", "--kind", "create-volume", "--volume", "data"]);
    assert_eq!(whats(&made), ["create-volume"]);
    assert!(
        made["events"][0]["who"].as_str().is_some_and(|who| who.contains('@') && !who.contains(' ')),
        "{made}"
    );
    let of_node = bed.json(&["events", "--node", "node-2", "--since", "1h"]);
    assert!(
        whats(&of_node).contains(&"evict".to_owned())
            && !whats(&of_node).contains(&"create-volume".to_owned())
    );
    assert!(whats(&bed.json(&["events", "--since", "2099-01-01"])).is_empty());
    bed.weft(&["events", "--since", "yesterday"]).fails_as_usage("expected how long ago");
    bed.ok(&["node", "start", "node-2"]);
    bed.await_health("healthy");
    assert_eq!(bed.json(&["status"])["troubles"].as_array().map(Vec::len), Some(0));
}

#[test]
fn events_are_followed_across_a_restart_of_the_manager() {
    let bed = Bed::new("follow");
    bed.up(2, 1);
    let mut follower = bed.spawn(&["events", "--follow", "--json"]);
    let mut lines = follower.lines();
    let first = lines.next().expect("it has begun to follow");
    bed.ok(&["manager", "stop", "--kill"]);
    bed.ok(&["manager", "start"]);
    bed.ok(&["volume", "create", "late", "--size", "16MiB"]);
    let mut last = 0;
    for line in std::iter::once(first).chain(lines) {
        let event: Value = serde_json::from_str(&line).expect("a document in each line");
        let seq = event["seq"].as_u64().expect("a number");
        assert_eq!(seq, last + 1, "one after another, none twice: {line}");
        last = seq;
        if event["what"] == "create-volume" {
            return;
        }
    }
    panic!("it ended after event {last}");
}

#[test]
fn levels_are_settings_and_wrong_ones_are_refused() {
    let bed = Bed::new("levels");
    bed.up(2, 1);
    let set = bed.json(&["fabric", "set", "--capacity-warning", "70%", "--capacity-critical", "85"]);
    let levels = serde_json::json!({ "warning_percent": 70, "critical_percent": 85 });
    assert_eq!(set["settings"]["capacity"], levels);
    assert_eq!(bed.json(&["fabric", "show"])["settings"]["capacity"], levels);
    let shown: Vec<String> = bed.ok(&["fabric", "show"]).lines().map(str::to_owned).collect();
    for (name, value) in [("capacity warning", "70 %"), ("capacity critical", "85 %")] {
        assert!(shown.iter().any(|line| line.starts_with(name) && line.ends_with(value)), "{shown:?}");
    }
    bed.weft(&["fabric", "set", "--capacity-warning", "90"]).fails(2, &["90 %", "85 %"]);
    bed.weft(&["fabric", "set", "--capacity-warning", "120%"]).fails_as_usage("1 to 99");
    assert_eq!(bed.json(&["fabric", "show"])["settings"]["capacity"], levels, "nothing was changed");
    assert_eq!(whats(&bed.json(&["events", "--kind", "settings"])), ["settings"]);
}
