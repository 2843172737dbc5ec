//! A session is ended while its client is there: it is locked out whatever it still sends, and another takes over.

mod bed;

use bed::{Bed, Running, kill, sample, wait_until};
use serde_json::Value;
use std::fs;
use std::io::Read;

const MIB: usize = 1 << 20;

/// The sessions that are open, by number.
fn open_sessions(bed: &Bed) -> Vec<String> {
    let listed = bed.json(&["session", "list"]);
    let listed = listed["sessions"].as_array().expect("a list").clone();
    let open = listed.iter().filter(|s| s["state"] == "open");
    open.map(|s| format!("s{}", s["id"].as_u64().expect("a number"))).collect()
}

fn used_bytes(bed: &Bed) -> u64 {
    let drives = bed.json(&["drive", "list"]);
    let drives = drives["drives"].as_array().expect("a list").clone();
    drives.iter().filter_map(|d| d["usage"]["used_bytes"].as_u64()).sum()
}

/// Waits for the end of a process; how it ended, and what it said on its standard error.
fn ended(mut client: Running) -> (Option<i32>, String) {
    let mut said = String::new();
    let mut err = client.0.stderr.take().expect("it was asked for");
    err.read_to_string(&mut said).expect("it can be read");
    (client.0.wait().expect("it is a child").code(), said)
}

/// A client that is frozen with writes in flight, so that nobody can tell it from one that is dead; and its session.
fn frozen_client(bed: &Bed) -> (Running, String) {
    let before = used_bytes(bed);
    let load =
        ["bench", "run", "data", "--warm-up", "0s", "--rw", "write", "--depth", "16", "--runtime", "1h"];
    let client = bed.spawn(&load);
    wait_until("the client writes", || used_bytes(bed) > before + 4 * MIB as u64);
    let [session] = open_sessions(bed).try_into().expect("one client");
    kill(client.0.id() as i32, "STOP");
    (client, session)
}

#[test]
fn a_frozen_client_whose_session_was_ended_writes_nothing_when_it_wakes() {
    let bed = Bed::new("session-flight");
    bed.up(3, 1);
    bed.ok(&["volume", "create", "data", "--size", "32MiB"]);
    let (client, session) = frozen_client(&bed);
    bed.ok(&["session", "end", &session, "--yes"]);
    wait_until("it is swept", || bed.json(&["session", "list"])["sessions"] == serde_json::json!([]));
    // No other client writes, and none attaches exclusively: only the end of the session keeps this one out.
    bed.ok(&["volume", "export", "data", "before"]);
    kill(client.0.id() as i32, "CONT");
    let (code, said) = ended(client);
    assert!(code == Some(1) && said.contains("'data'") && said.contains("session"), "{code:?}: {said}");
    bed.ok(&["volume", "export", "data", "after"]);
    let read = |name: &str| fs::read(bed.path(name)).expect("read");
    assert!(read("before") == read("after"), "it has written after its end");
}

#[test]
fn a_client_whose_session_is_ended_writes_nothing_more() {
    let bed = Bed::new("session-end");
    bed.up(3, 1);
    bed.ok(&["volume", "create", "data", "--size", "32MiB"]);
    let data = sample(32 * MIB, 5);
    fs::write(bed.path("file"), &data).expect("written");
    let (client, session) = frozen_client(&bed);
    let import = ["volume", "import", "data", "file", "--force"];
    bed.weft(&import).fails(4, &["data", &session]);
    bed.weft(&["session", "end", &session]).fails(4, &["There is no terminal"]);
    bed.weft(&["session", "end", "data", "--yes"]).fails_as_usage("'data' is no session");
    assert!(bed.ok(&["session", "end", &session, "--dry-run"]).contains("would be ended"));
    bed.weft(&import).fails(4, &["data", &session]);

    assert_eq!(bed.ok(&["session", "end", &session, "--yes"]), format!("session {session} ended\n"));
    // At once: not when the client has been silent for long enough.
    bed.ok(&import);
    kill(client.0.id() as i32, "CONT");
    let (code, said) = ended(client);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("'data'") && said.contains("session"), "{said}");
    assert!(said.lines().any(|line| line.starts_with("hint: ")), "{said}");
    bed.ok(&["volume", "export", "data", "back"]);
    assert!(fs::read(bed.path("back")).expect("read") == data, "only the other client has written since");
    bed.weft(&["session", "end", &session, "--yes"]).fails(1, &["no session"]);
    let told: Value = bed.json(&["events", "--volume", "data"]);
    let told =
        told["events"].as_array().expect("a list").iter().any(|e| e["why"].to_string().contains(&session));
    assert!(told, "the event says which session was ended");
    wait_until("nothing is in flight", || bed.weft(&["fabric", "check"]).code == 0);
}

#[test]
fn a_server_whose_session_is_ended_says_so_and_ends() {
    let bed = Bed::new("session-serve");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "8MiB"]);
    let nbd = format!("127.0.0.1:{}", bed.port + 12);
    let mut server = bed.spawn(&["volume", "serve", "data", "--nbd", &nbd]);
    server.await_line("nbd://");
    let [session] = open_sessions(&bed).try_into().expect("one client");
    bed.ok(&["session", "end", &session, "--yes"]);
    let (code, said) = ended(server);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("nothing is left to serve") && said.contains("'data'"), "{said}");
    assert!(said.contains("ended it (`weft session end`)"), "the reason is the true one: {said}");
    let mut server = bed.spawn(&["volume", "serve", "data", "--nbd", &nbd]);
    server.await_line("nbd://");
    server.end("TERM");
}

#[test]
fn a_volume_in_use_is_refused_in_few_words_or_waited_for() {
    let bed = Bed::new("session-wait");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "8MiB"]);
    let nbd = |n: u16| format!("127.0.0.1:{}", bed.port + n);
    let mut first = bed.spawn(&["volume", "serve", "data", "--nbd", &nbd(12)]);
    first.await_line("nbd://");
    let [session] = open_sessions(&bed).try_into().expect("one client");
    let refused = bed.weft(&["volume", "serve", "data", "--nbd", &nbd(13)]);
    refused.fails(4, &["'data'", &format!("weft session end {session}"), "--preempt", "--wait"]);
    assert!(!refused.err.contains("weft volume delete"), "that is no way to serve it: {}", refused.err);
    assert!(refused.err.split_whitespace().count() < 70, "{}", refused.err);
    let mut second = bed.spawn(&["volume", "serve", "data", "--nbd", &nbd(13), "--wait"]);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(second.0.try_wait().expect("it is a child").is_none(), "it waits");
    first.end("TERM");
    second.await_line("nbd://");
    second.end("TERM");
}
