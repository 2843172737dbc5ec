//! What a node has and its manager does not serve is seen in the status: drives of another fabric, nodes of
//! another fabric, and drives that cannot be opened.

mod bed;

use bed::{Bed, Running, wait_until};
use serde_json::Value;
use std::fs;

/// A manager and a node as processes, started and stopped one by one.
struct Site {
    bed: Bed,
    manager: String,
}

impl Site {
    fn new(name: &str) -> Site {
        let bed = Bed::new(name);
        let manager = format!("127.0.0.1:{}", bed.port);
        Site { bed, manager }
    }

    /// Makes a fabric with its store in this file; returns its identity.
    fn init(&self, store: &str) -> String {
        self.bed.json(&["fabric", "init", store])["fabric"].as_str().expect("its identity").to_owned()
    }

    fn format(&self, file: &str, fabric: &str) {
        self.bed.ok(&["drive", "format", file, "--fabric-id", fabric, "--size", "128MiB", "--sparse"]);
    }

    fn start_manager(&self, store: &str) -> Running {
        let running = self.bed.spawn(&["manager", "run", "--store", store, "--listen", &self.manager]);
        wait_until("the manager serves", || {
            self.bed.weft(&["--fabric", &self.manager, "fabric", "show"]).code == 0
        });
        running
    }

    fn start_node(&self, n: u16, drives: &[&str]) -> Running {
        let (name, listen) = (format!("node-{n}"), format!("127.0.0.1:{}", self.bed.port + n));
        let mut args = vec!["node", "run", "--name", &name, "--manager", &self.manager, "--listen", &listen];
        for drive in drives {
            args.extend(["--drive", drive]);
        }
        self.bed.spawn(&args)
    }

    fn status(&self) -> Value {
        self.bed.json(&["--fabric", &self.manager, "status"])
    }

    /// The sentence of a trouble of this kind, once it is there.
    fn await_trouble(&self, kind: &str) -> (Value, String) {
        let find = || {
            let status = self.status();
            let troubles = status["troubles"].as_array().expect("a list").clone();
            troubles.into_iter().find(|t| t["kind"] == kind)
        };
        wait_until(kind, || find().is_some());
        let trouble = find().expect("it is there");
        let what = trouble["what"].as_str().expect("a sentence").to_owned();
        (trouble, what)
    }
}

#[test]
fn a_manager_on_a_wrong_store_is_not_healthy() {
    let site = Site::new("foreign");
    let bed = &site.bed;
    let mine = site.init("mine/map.redb");
    for file in ["a", "b"] {
        site.format(file, &mine);
    }
    let manager = site.start_manager("mine/map.redb");
    let (first, second) = (site.start_node(1, &["a"]), site.start_node(2, &["b"]));
    wait_until("both drives are there", || {
        bed.json(&["--fabric", &site.manager, "drive", "list"])["drives"].as_array().map(Vec::len) == Some(2)
    });
    wait_until("it is healthy", || site.status()["health"] == "healthy");
    assert_eq!(manager.end("TERM"), Some(0));

    // A new fabric where the old one was: one node is started again, the other one runs on.
    let wrong = site.init("wrong/map.redb");
    let manager = site.start_manager("wrong/map.redb");
    assert_eq!(first.end("TERM"), Some(0));
    let first = site.start_node(1, &["a"]);
    let (trouble, what) = site.await_trouble("drive-foreign");
    let id = trouble["drive"].as_str().expect("which one").to_owned();
    for word in ["node 'node-1'", &id[..8], "(a)", &mine, &wrong] {
        assert!(what.contains(word), "{word}: {what}");
    }
    let names_both = |t: &Value| t.to_string().contains(&mine) && t.to_string().contains(&wrong);
    let is_told = |t: &Value| t["kind"] == "node-foreign" && t["node"] == "node-2" && names_both(t);
    wait_until("the other node is told", || {
        site.status()["troubles"].as_array().expect("a list").iter().any(is_told)
    });
    wait_until("it is unavailable", || site.status()["health"] == "unavailable");
    let said = bed.ok(&["--fabric", &site.manager, "status"]);
    assert!(said.contains("fabric recover STORE --drives"), "{said}");
    let check = bed.weft(&["--fabric", &site.manager, "fabric", "check"]);
    assert!(check.code == 1 && check.out.contains(&mine) && check.out.contains("'node-2'"), "{check:?}");

    // Back on its own store, all is well.
    for running in [manager, first, second] {
        running.end("TERM");
    }
    let _manager = site.start_manager("mine/map.redb");
    let _nodes = (site.start_node(1, &["a"]), site.start_node(2, &["b"]));
    wait_until("it is healthy", || site.status()["health"] == "healthy");
}

#[test]
fn a_drive_that_cannot_be_opened_is_told_with_its_reason() {
    let site = Site::new("left-out");
    let bed = &site.bed;
    let fabric = site.init("map.redb");
    for file in ["a", "b"] {
        site.format(file, &fabric);
    }
    let _manager = site.start_manager("map.redb");
    fs::write(bed.path("plain"), vec![7; 1 << 20]).expect("written");
    let node = site.start_node(1, &["a", "b", "plain", "gone"]);
    let (trouble, what) = site.await_trouble("drive-left-out");
    assert_eq!(trouble["severity"], "warning");
    for word in ["node 'node-1' has left out 2 drives", "plain: not a Weft drive", "gone"] {
        assert!(what.contains(word), "{word}: {what}");
    }
    assert_eq!(site.status()["health"], "healthy", "nothing is missing");
    assert_eq!(node.end("TERM"), Some(0));

    // One that the map lists is missed, and why is said of it.
    fs::rename(bed.path("b"), bed.path("elsewhere")).expect("renamed");
    let node = site.start_node(1, &["a", "b"]);
    let (_, what) = site.await_trouble("drive-absent");
    assert!(what.contains("node 'node-1' is up without its drive") && what.contains("cannot open"), "{what}");
    let check = bed.weft(&["--fabric", &site.manager, "fabric", "check"]);
    assert!(check.code == 1 && check.out.contains("cannot open the drive"), "{check:?}");
    assert_eq!(node.end("TERM"), Some(0));
    fs::rename(bed.path("elsewhere"), bed.path("b")).expect("renamed");
    let node = site.start_node(1, &["a", "b"]);
    wait_until("nothing is missed", || site.status()["troubles"] == serde_json::json!([]));

    // One that was removed for good and is still named is no trouble.
    let drives = bed.json(&["--fabric", &site.manager, "drive", "list"]);
    let drives = drives["drives"].as_array().expect("a list");
    let b =
        drives.iter().find(|d| d["path"].as_str().is_some_and(|p| p.ends_with('b'))).expect("it is there");
    let b = b["id"].as_str().expect("its identity").to_owned();
    bed.ok(&["--fabric", &site.manager, "drive", "evacuate", &b]);
    bed.ok(&["--fabric", &site.manager, "drive", "remove", &b, "--yes"]);
    assert_eq!(node.end("TERM"), Some(0));
    let _node = site.start_node(1, &["a", "b"]);
    let (trouble, what) = site.await_trouble("drive-refused");
    assert!(trouble["severity"] == "notice" && what.contains("was removed from the fabric"), "{trouble}");
    assert_eq!(site.status()["health"], "healthy");
    let said = bed.ok(&["--fabric", &site.manager, "status"]);
    assert!(said.contains("take it out of the list of node 'node-1'"), "{said}");
}
