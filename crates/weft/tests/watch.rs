//! What the fabric does, as `weft watch` and the metrics tell it.

mod bed;

use bed::{Bed, assert_balanced, sample, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;

/// Bytes of the image that is imported: enough for several requests to every drive.
const IMAGE: usize = 16 << 20;

fn bytes(rows: &Value) -> u64 {
    let rows = rows.as_array().expect("rows");
    rows.iter().map(|row| row["written_bytes"].as_u64().expect("bytes are integers")).sum()
}

#[test]
fn what_is_imported_shows_on_the_watch() {
    let bed = Bed::new("watch");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "64MiB", "--copies", "2"]);
    fs::write(bed.path("image"), sample(IMAGE, 7)).expect("written");
    // The first import lets the nodes know the volume; those that follow fall into the intervals.
    bed.ok(&["volume", "import", "data", "image", "--force"]);
    let mut watch = bed.spawn(&["watch", "--json", "--interval", "2s", "--count", "2"]);
    let mut lines = BufReader::new(watch.0.stdout.take().expect("it was asked for")).lines();
    let mut documents = Vec::new();
    while watch.0.try_wait().expect("it is a child").is_none() {
        bed.ok(&["volume", "import", "data", "image", "--force"]);
    }
    while let Some(Ok(line)) = lines.next() {
        documents.push(serde_json::from_str::<Value>(&line).unwrap_or_else(|e| panic!("{e}: {line}")));
    }
    assert_eq!(documents.len(), 2, "{documents:?}{}", bed.logs());
    for document in &documents {
        assert_eq!(document["schema_version"], 1);
        assert_eq!(document["nodes"].as_array().map(Vec::len), Some(2), "{document}");
        assert_eq!(document["drives"].as_array().map(Vec::len), Some(2), "{document}");
        assert!(document["nodes"][0]["cpu_percent"].is_number(), "{document}");
        assert!(document["interfaces"].as_array().is_some_and(|i| !i.is_empty()), "{document}");
    }
    let sum = |what: &str| documents.iter().map(|d| bytes(&d[what])).sum::<u64>();
    let (volumes, drives) = (sum("volumes"), sum("drives"));
    assert!(volumes > 0, "{documents:?}");
    // Both copies are written by the time of either look but for what is under way: never twice as much more.
    assert!(drives > volumes && drives <= volumes * 3, "{drives} on the drives for {volumes} of the volume");
    let volume =
        documents.iter().flat_map(|d| d["volumes"].as_array().expect("rows")).find(|v| bytes_of(v) > 0);
    let volume = volume.expect("some bytes are of a volume");
    assert_eq!(volume["name"], "data");
    assert!(volume["write_latency_us"]["p99"].as_u64().is_some_and(|us| us > 0), "{volume}");
}

fn bytes_of(row: &Value) -> u64 {
    row["written_bytes"].as_u64().unwrap_or(0)
}

#[test]
fn text_for_a_file_and_a_dead_manager() {
    let bed = Bed::new("watch-text");
    bed.up(1, 1);
    // Long enough for a lease to be renewed, which is what goes over the network here.
    let text = bed.ok(&["watch", "--interval", "2s", "--count", "1", "--by", "node", "--sort", "cpu"]);
    assert!(text.contains("is healthy, 1 of 1 nodes up") && text.contains("NODE"), "{text}");
    assert!(text.contains("node-1") && text.contains("INTERFACE") && !text.contains('\x1b'), "{text}");
    bed.ok(&["manager", "stop"]);
    let said = bed.weft(&["watch", "--interval", "100ms", "--count", "2", "--json"]);
    assert_eq!(said.code, 0, "{said:?}");
    let lines: Vec<Value> = said.out.lines().map(|l| serde_json::from_str(l).expect("a document")).collect();
    assert_eq!(lines.len(), 2, "{said:?}");
    assert!(lines[0]["error"].as_str().is_some_and(|e| e.contains("no fabric answers")), "{said:?}");
    assert!(said.err.contains("trying again"), "{said:?}");
    bed.weft(&["watch", "--interval", "1ms"]).fails(2, &["100ms at least"]);
}

/// Asks the member that listens at this port for its metrics.
fn metrics(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers in text");
    let (head, page) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    page.to_owned()
}

#[test]
fn every_member_of_a_local_fabric_serves_the_documented_metrics() {
    let bed = Bed::new("metrics");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "64MiB", "--copies", "2"]);
    fs::write(bed.path("image"), sample(IMAGE, 9)).expect("written");
    bed.ok(&["volume", "import", "data", "image", "--force"]);
    // Behind the ports of the manager and two nodes.
    let pages: Vec<String> = (3..6).map(|member| metrics(bed.port + member)).collect();
    let told = pages.iter().flat_map(|page| page.lines()).filter_map(|l| l.strip_prefix("# TYPE "));
    let told: BTreeSet<&str> = told.filter_map(|l| l.split(' ').next()).collect();
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let reference = fs::read_to_string(reference).expect("it is in the repository");
    let named = reference.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next());
    // Those of servers of volumes are told by none of these members.
    let named = named.filter(|name| !name.starts_with("weft_server_"));
    let named: BTreeSet<&str> = named.map(|name| name.strip_suffix("_total").unwrap_or(name)).collect();
    assert_eq!(told, named);
    for line in pages.iter().flat_map(|page| page.lines()).filter(|l| !l.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').expect("a name and a value");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    let sum = |name: &str| -> f64 {
        let lines = pages.iter().flat_map(|page| page.lines()).filter(|l| l.starts_with(name));
        lines.filter_map(|l| l.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    };
    assert!(sum("weft_volume_written_bytes_total{") > 0.0, "{}", pages[1]);
    assert_eq!(
        sum("weft_drive_written_bytes_total{"),
        2.0 * sum("weft_volume_written_bytes_total{"),
        "two copies of what the volume took once"
    );
    assert!(sum("weft_drive_write_latency_seconds_count{") > 0.0);
    assert_eq!(sum("weft_node_up{"), 2.0, "{}", pages[0]);
    assert!(pages[2].contains("node=\"node-2\""), "{}", pages[2]);
    bed.ok(&["node", "stop", "node-2", "--kill"]);
    wait_until("the manager tells that a node is gone", || {
        metrics(bed.port + 3).lines().any(|l| l == "weft_node_up{node=\"node-2\"} 0")
    });
}

#[test]
fn what_was_recorded_becomes_a_page_with_what_happened() {
    let bed = Bed::new("record");
    bed.up(3, 1);
    bed.ok(&["volume", "create", "data", "--size", "64MiB", "--copies", "2"]);
    fs::write(bed.path("image"), sample(IMAGE, 3)).expect("written");
    bed.ok(&["volume", "import", "data", "image", "--force"]);
    bed.ok(&["events", "--add", "this was before"]);
    let watch = bed.spawn(&["watch", "--interval", "200ms", "--record", "seen", "--html", "watched.html"]);
    let recorded = |is_wanted: fn(u64) -> bool| {
        let text = fs::read_to_string(bed.path("seen")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter_map(|line| line["copies_behind"].as_u64()).filter(|behind| is_wanted(*behind)).count()
    };
    wait_until("an interval is recorded", || recorded(|_| true) > 0);
    bed.ok(&["events", "--add", "an image <comes>"]);
    bed.ok(&["volume", "import", "data", "image", "--force"]);
    bed.ok(&["node", "stop", "node-2", "--kill"]);
    wait_until("copies are missing", || recorded(|behind| behind > 0) > 0);
    bed.ok(&["node", "start", "node-2"]);
    bed.await_health("healthy");
    let whole = recorded(|behind| behind == 0);
    wait_until("that they are back is recorded too", || recorded(|behind| behind == 0) > whole);
    assert_eq!(watch.end("TERM"), Some(0), "{}", bed.logs());

    // Every line is what --json prints.
    let text = fs::read_to_string(bed.path("seen")).expect("it was written");
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert_eq!((&line["schema_version"], line["events"].is_array()), (&1.into(), true), "{line}");
        assert!(line["copies_behind"].is_u64() && line["total"]["written_bytes"].is_u64(), "{line}");
    }
    let report = bed.json(&["report", "seen", "--html", "page.html", "--title", "A <test>"]);
    assert_eq!(report["intervals"], text.lines().count());
    assert_eq!(report["volumes"][0]["name"], "data");
    let written = report["volumes"][0]["written_bytes"].as_u64().expect("bytes");
    assert!(written > 0 && written <= IMAGE as u64, "{report}");
    let events: Vec<&str> = report["events"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|e| e["what"].as_str().expect("text"))
        .collect();
    let at = |word: &str| events.iter().position(|what| what.contains(word));
    let places = ["an image <comes>", "'node-2' is taken for gone", "all copies are up to date"].map(at);
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{events:?}");
    assert_eq!(at("this was before"), None, "{events:?}");
    assert!(bed.ok(&["report", "seen"]).contains("an image <comes>"));

    for (page, title) in [("page.html", "A &lt;test&gt;"), ("watched.html", "Fabric ")] {
        let html = fs::read_to_string(bed.path(page)).unwrap_or_else(|e| panic!("{page}: {e}"));
        assert_balanced(&html);
        assert!(html.contains(&format!("<h1>{title}")) && html.contains("an image &lt;comes&gt;"), "{page}");
        assert!(html.matches("<svg").count() >= 4, "each chart is there");
        assert!(!html.contains("<script") && !html.contains("href="), "it needs nothing else");
    }
}

#[test]
fn records_and_pages_that_cannot_be_are_refused() {
    let bed = Bed::new("record-refused");
    fs::write(bed.path("held"), "precious").expect("written");
    fs::write(
        bed.path("silent"),
        "{\"schema_version\":1,\"time\":\"2026-11-21T10:00:00.000Z\",\"error\":\"gone\"}\n",
    )
    .expect("written");
    bed.weft(&["report", "held"]).fails(1, &["held is no record", "no interval"]);
    bed.weft(&["report", "silent"]).fails(1, &["no interval"]);
    bed.weft(&["report", "none"]).fails(1, &["none"]);
    bed.weft(&["report", "held", "--title", "x"]).fails(2, &["--html"]);
    bed.up(1, 1);
    let watch = |rest: &[&str]| bed.weft(&[&["watch", "--count", "1", "--interval", "100ms"], rest].concat());
    watch(&["--record", "held"]).fails(4, &["held holds something already"]);
    assert_eq!(fs::read_to_string(bed.path("held")).expect("it is there"), "precious");
    watch(&["--html", "page.html"]).fails(2, &["--record"]);
    watch(&["--record", "new", "--html", "nowhere/page.html"]).fails(1, &["nowhere/page.html"]);
    assert!(!bed.path("new").exists(), "nothing was begun");
    assert_eq!(watch(&["--record", "new", "--html", "page.html"]).code, 0);
    assert!(bed.path("page.html").exists());
    // A line that is not finished is that of a watch which still writes.
    let mut text = fs::read_to_string(bed.path("new")).expect("it was written");
    text.push_str("{\"schema_ver");
    fs::write(bed.path("new"), &text).expect("written");
    assert_eq!(bed.json(&["report", "new"])["intervals"], 1);
    fs::write(bed.path("new"), format!("{text}\n")).expect("written");
    bed.weft(&["report", "new"]).fails(1, &["line 2"]);
    for note in ["", "two\nlines", &"x".repeat(201)] {
        bed.weft(&["events", "--add", note]).fails(2, &["a note has 1 to 200 characters"]);
    }
}
