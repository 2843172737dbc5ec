//! What daemons log: JSON lines, and one request found by its number on every machine that it reached.

mod bed;

use bed::{Bed, sample, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

/// The lines of a member's log.
fn lines(bed: &Bed, member: &str) -> Vec<Value> {
    let path = bed.fabric().join(format!("log/{member}.log"));
    let log = fs::read_to_string(&path).expect("a log");
    log.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{member}: {e}: {l}"))).collect()
}

/// The numbers of the requests that a log tells of as slow.
fn slow(lines: &[Value]) -> BTreeSet<String> {
    let told = lines.iter().filter(|line| line["message"] == "request was slow");
    told.map(|line| line["request_id"].as_str().expect("it has a number").to_owned()).collect()
}

#[test]
fn one_number_finds_a_request_in_the_logs_of_all_machines() {
    let mut bed = Bed::new("logs");
    // Every request is slow by this threshold.
    bed.env = vec![("WEFT_LOG_FORMAT", "json"), ("WEFT_SLOW_REQUEST", "0ms")];
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "64MiB", "--copies", "2"]);
    fs::write(bed.path("image"), sample(16 << 20, 5)).expect("written");
    bed.env.push(("WEFT_LOG", "warn"));
    let said = bed.weft(&["volume", "import", "data", "image"]);
    assert_eq!(said.code, 0, "{said:?}");
    let client: BTreeSet<String> = said
        .err
        .lines()
        .filter_map(|line| Some(line.split_once("request_id=")?.1.split(' ').next()?.to_owned()))
        .collect();
    let (one, two) = (lines(&bed, "node-1"), lines(&bed, "node-2"));
    let found: Vec<&String> = client.iter().filter(|id| slow(&one).contains(*id)).collect();
    let everywhere: Vec<_> = found.into_iter().filter(|id| slow(&two).contains(*id)).collect();
    assert!(!everywhere.is_empty(), "{client:?}\n{:?}\n{:?}", slow(&one), slow(&two));
    for line in one.iter().chain(&two) {
        for field in ["time", "level", "daemon", "node", "module", "message"] {
            assert!(line[field].is_string(), "{field} is not in {line}");
        }
    }
    let of =
        |lines: &[Value]| lines.iter().find(|l| l["request_id"] == **everywhere[0]).cloned().expect("found");
    let (at_one, at_two) = (of(&one), of(&two));
    assert_eq!((&at_one["node"], &at_two["node"]), (&"node-1".into(), &"node-2".into()));
    assert_ne!(at_one["drive"], at_two["drive"]);
    for line in [&at_one, &at_two] {
        assert_eq!((&line["volume"], &line["level"]), (&"data".into(), &"warn".into()));
        assert!(line["what"].as_str().is_some_and(|what| what.starts_with("write")), "{line}");
        assert!(line["epoch"].is_u64() && line["took_ms"].is_u64() && line["group"].is_string(), "{line}");
    }
    // Many more were slow than are told one by one.
    assert!(slow(&one).len() <= 40, "{}", slow(&one).len());
    wait_until("what was left out is counted", || {
        lines(&bed, "node-1").iter().any(|line| line["suppressed"].as_u64().is_some_and(|n| n > 0))
    });
}

/// The requests that lines of a log in text tell of as failed.
fn failed_in_text(log: &str) -> BTreeSet<String> {
    let told = log.lines().filter(|line| line.contains("request failed"));
    told.filter_map(|line| Some(line.split_once("request_id=")?.1.split(' ').next()?.to_owned())).collect()
}

#[test]
fn a_request_that_fails_is_told_under_its_number_by_the_client_and_by_the_node() {
    let mut bed = Bed::new("logs-failed");
    bed.env = vec![("WEFT_LOG_FORMAT", "json")];
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "256MiB", "--copies", "2", "--thin"]);
    fs::write(bed.path("image"), vec![7; 192 << 20]).expect("written");
    bed.env.push(("WEFT_LOG", "warn"));
    let said = bed.weft(&["volume", "import", "data", "image"]);
    assert_eq!(said.code, 1, "it does not fit on drives of 128 MiB: {said:?}");
    let client = failed_in_text(&said.err);
    let nodes: Vec<Value> = ["node-1", "node-2"].iter().flat_map(|node| lines(&bed, node)).collect();
    let told: Vec<&Value> = nodes.iter().filter(|line| line["message"] == "request failed").collect();
    assert!(!told.is_empty(), "{said:?}");
    for line in &told {
        assert!(
            line["request_id"].as_str().is_some_and(|id| id.starts_with('s') && id.contains('-')),
            "{line}"
        );
        assert_eq!((&line["volume"], &line["what"]), (&"data".into(), &"write".into()), "{line}");
        assert!(
            line["status"].is_string() && line["error"].is_string() && line["drive"].is_string(),
            "{line}"
        );
    }
    let at_nodes: BTreeSet<String> =
        told.iter().filter_map(|line| Some(line["request_id"].as_str()?.to_owned())).collect();
    assert!(client.intersection(&at_nodes).next().is_some(), "{client:?}\n{at_nodes:?}");
}

#[test]
fn a_level_that_means_nothing_and_a_file_that_cannot_be_written_are_refused() {
    let bed = Bed::new("logs-bad");
    let run = |more: &[&str]| {
        let args = ["manager", "run", "--store", "m.redb", "--listen", "127.0.0.1:0"];
        bed.weft(&[&args[..], more].concat())
    };
    run(&["--log-level", "weft_target=loud"])
        .fails(2, &["'weft_target=loud' is no log level", "expected error"]);
    run(&["--log-file", "none/x.log"]).fails(1, &["cannot open the log none/x.log"]);
    run(&["--log-file", "x.log", "--log-file-size", "1KiB"])
        .fails(2, &["--log-file-size is 1024 bytes", "65536"]);
    run(&["--log-format", "xml"]).fails(2, &["'xml'", "json"]);
}
