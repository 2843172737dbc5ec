//! The dashboard and the alerts: every expression is about metrics that there are, and Prometheus answers it from a live
//! fabric with something sane. What needs Prometheus is left out where it is not installed (`scripts/setup.sh --for test`
//! installs it).

mod bed;

use bed::{Bed, PATIENCE, Running, sample, wait_until};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// What stands for the window that Grafana chooses: several scrapes of this test.
const WINDOW: &str = "10s";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn read(name: &str) -> String {
    fs::read_to_string(docs().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// A panel's expression.
#[derive(Clone, Debug)]
struct Asked {
    panel: String,
    unit: String,
    expr: String,
}

fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&read("grafana/weft.json")).expect("the dashboard is JSON");
    dashboard["panels"].as_array().expect("panels").clone()
}

fn expressions() -> Vec<Asked> {
    let mut asked = Vec::new();
    for panel in panels().iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().expect("a unit").to_owned();
        for target in panel["targets"].as_array().expect("targets") {
            let expr = target["expr"].as_str().expect("an expression").to_owned();
            asked.push(Asked { panel: title.clone(), unit: unit.clone(), expr });
        }
    }
    asked
}

/// Names of metrics as queries have them, with the labels of each.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    let mut of_nodes = false;
    for line in read("reference/metrics.md").lines() {
        if line.starts_with("## ") {
            of_nodes = line == "## Of nodes" || line.contains("the process");
        }
        let Some(rest) = line.strip_prefix("| `") else { continue };
        let cells: Vec<&str> = rest.split('|').map(str::trim).collect();
        let name = cells[0].trim_end_matches('`');
        let mut labels: BTreeSet<String> = cells[2]
            .split(',')
            .map(|l| l.trim().trim_matches('`').to_owned())
            .filter(|l| !l.is_empty())
            .collect();
        // Prometheus adds two to everything; a node adds its name.
        labels.extend(["instance", "job"].map(str::to_owned));
        labels.extend(of_nodes.then(|| "node".to_owned()));
        if cells[1] == "histogram" {
            for suffix in ["bucket", "sum", "count"] {
                let with_le = labels.iter().cloned().chain(["le".to_owned()]).collect();
                all.insert(format!("{name}_{suffix}"), with_le);
            }
        }
        all.insert(name.to_owned(), labels);
    }
    all
}

/// The metrics in an expression, each with the labels of its selector.
fn selectors(expr: &str) -> Vec<(String, BTreeSet<String>)> {
    let mut found = Vec::new();
    let mut rest = expr;
    while let Some(at) = rest.find("weft_") {
        rest = &rest[at..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        let inner = behind.strip_prefix('{').and_then(|s| s.split_once('}')).map_or("", |(inner, _)| inner);
        let labels = inner.split(',').filter_map(|m| m.split(['=', '!']).next()).map(str::trim);
        found.push((name.to_owned(), labels.filter(|l| !l.is_empty()).map(str::to_owned).collect()));
        rest = behind;
    }
    found
}

#[test]
fn every_expression_is_about_metrics_and_labels_that_there_are() {
    let documented = documented();
    let alerts = read("grafana/alerts.yml");
    let rules = alerts.lines().filter(|l| !l.contains("description:") && !l.contains("summary:"));
    let all: Vec<String> =
        expressions().into_iter().map(|a| a.expr).chain(rules.map(str::to_owned)).collect();
    let mut used = BTreeSet::new();
    for expr in &all {
        for (name, labels) in selectors(expr) {
            let known = documented.get(&name).unwrap_or_else(|| panic!("there is no metric {name}: {expr}"));
            assert!(labels.is_subset(known), "{name} has the labels {known:?}: {expr}");
            used.insert(name);
        }
    }
    assert!(used.len() > 40, "the dashboard shows {} of {} metrics", used.len(), documented.len());
}

#[test]
fn the_dashboard_can_be_imported() {
    let dashboard: Value = serde_json::from_str(&read("grafana/weft.json")).expect("JSON");
    assert!(dashboard["id"].is_null() && dashboard["uid"].is_string(), "it is nobody's database entry");
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let names: Vec<&str> = variables.iter().filter_map(|v| v["name"].as_str()).collect();
    assert_eq!(names, ["datasource", "node", "volume"]);
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels() {
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "twice: {panel}");
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        assert!(at("x") + at("w") <= 24, "{panel}");
        for y in at("y")..at("y") + at("h") {
            for x in at("x")..at("x") + at("w") {
                assert!(cells.insert((x, y)), "another panel is under {}", panel["title"]);
            }
        }
        if panel["type"] != "row" {
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
        }
    }
}

/// Whether a program can be run; says so if not.
fn has(program: &str) -> bool {
    let there =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !there {
        eprintln!("left out: {program} is not installed");
    }
    there
}

#[test]
fn every_alert_fires_when_it_should_and_only_then() {
    if !has("promtool") {
        return;
    }
    for args in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]] {
        let done = Command::new("promtool").args(args).current_dir(docs().join("grafana")).output();
        let done = done.expect("promtool runs");
        let said =
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{said}");
    }
    let (alerts, tests) = (read("grafana/alerts.yml"), read("grafana/alerts.test.yml"));
    for name in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname: {name} }}")), "no test has {name} at rest");
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "no test has {name} fire");
    }
}

/// A Prometheus that scrapes a local fabric of two nodes every second, and applies the alerts.
struct Prometheus {
    port: u16,
    _process: Running,
}

impl Prometheus {
    fn start(bed: &Bed) -> Prometheus {
        let alerts = fs::canonicalize(docs().join("grafana/alerts.yml")).expect("the alerts");
        // Behind the ports of the manager and two nodes.
        let target = |member: u16| format!("127.0.0.1:{}", bed.port + 3 + member);
        let config = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }}\n\
             rule_files: ['{}']\nscrape_configs:\n\
             - {{ job_name: weft-manager, static_configs: [ {{ targets: ['{}'] }} ] }}\n\
             - {{ job_name: weft-node, static_configs: [ {{ targets: ['{}', '{}'] }} ] }}\n",
            alerts.display(),
            target(0),
            target(1),
            target(2)
        );
        fs::write(bed.path("prometheus.yml"), config).expect("written");
        let port = bed.port + 12;
        let log = fs::File::create(bed.path("prometheus.log")).expect("made");
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", bed.path("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", bed.path("tsdb").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .env("GOMAXPROCS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let prometheus = Prometheus { port, _process: Running(process.expect("prometheus runs")) };
        wait_until("Prometheus is ready", || prometheus.get("/-/ready").is_some());
        prometheus
    }

    /// The body of an answer with status 200.
    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.split(' ').nth(1).filter(|status| *status == "200").map(|_| body.to_owned())
    }

    /// The values of an expression now; an error if it cannot be understood, or a value is no number.
    fn query(&self, expr: &str) -> Result<Vec<f64>, String> {
        let encoded: String = expr.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let body = self.get(&format!("/api/v1/query?query={encoded}")).ok_or("it is no expression")?;
        let answer: Value = serde_json::from_str(&body).map_err(|e| e.to_string())?;
        let rows = answer["data"]["result"].as_array().ok_or_else(|| body.clone())?;
        let value = |row: &Value| row["value"][1].as_str().and_then(|text| text.parse().ok());
        rows.iter().map(|row| value(row).ok_or_else(|| format!("no number: {row}"))).collect()
    }

    /// Each alert, with its state.
    fn alerts(&self) -> BTreeMap<String, String> {
        let body = self.get("/api/v1/rules").expect("rules");
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        let groups = answer["data"]["groups"].as_array().expect("groups").iter();
        let rules = groups.flat_map(|group| group["rules"].as_array().expect("rules").clone());
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        rules
            .map(|rule| {
                assert!(rule["health"] != "err", "{rule}");
                (text(&rule["name"]), text(&rule["state"]))
            })
            .collect()
    }
}

/// What is wrong with the values of a panel; none if they are sane.
fn complaint(asked: &Asked, values: &[f64]) -> Option<String> {
    if values.is_empty() {
        return Some("nothing".into());
    }
    let (lowest, highest) = match (&*asked.panel, &*asked.unit) {
        (
            "Health" | "Groups degraded" | "Groups unavailable" | "Drives failed" | "Blocks lost"
            | "Level of each pool",
            _,
        ) => (0.0, 0.0),
        ("Nodes up", _) => (2.0, 2.0),
        ("Nodes" | "Manager, as the nodes see it", _) => (1.0, 1.0),
        // A line drawn on for a week from the seconds of a test may lead anywhere.
        ("Used in a week, at this pace", _) => (f64::MIN, f64::MAX),
        (_, "percentunit") => (0.0, 1.0),
        _ => (0.0, 1e15),
    };
    let is_sane = |value: &f64| value.is_finite() && (lowest..=highest).contains(value);
    if !values.iter().all(is_sane) {
        return Some(format!("{values:?}, expected {lowest} to {highest}"));
    }
    // While an image is written and read again, all of these move.
    let moves = [
        "per second",
        "Bytes read",
        "Bytes written",
        "Written to",
        "quantiles",
        "p99",
        "Processor",
        "Memory",
    ];
    let must_move = moves.iter().any(|word| asked.panel.contains(word));
    (must_move && values.iter().sum::<f64>() <= 0.0).then(|| format!("{values:?}, though much is done"))
}

#[test]
fn prometheus_answers_every_expression_from_a_live_fabric() {
    if !has("prometheus") {
        return;
    }
    let bed = Bed::new("grafana");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "64MiB", "--copies", "2"]);
    fs::write(bed.path("image"), sample(16 << 20, 3)).expect("written");
    let prometheus = Prometheus::start(&bed);
    bed.ok(&["volume", "import", "data", "image", "--force"]);
    bed.ok(&["scrub", "start", "--all"]);
    let mut pending: Vec<(Asked, String)> = expressions().into_iter().map(|a| (a, String::new())).collect();
    assert!(pending.len() > 60, "{}", pending.len());
    let began = Instant::now();
    while !pending.is_empty() {
        bed.ok(&["volume", "import", "data", "image", "--force"]);
        let _ = fs::remove_file(bed.path("back"));
        bed.ok(&["volume", "export", "data", "back"]);
        pending.retain_mut(|(asked, why)| {
            let expr = asked.expr.replace("$__rate_interval", WINDOW);
            let expr = expr.replace("$node", ".*").replace("$volume", ".*");
            let values = prometheus.query(&expr);
            match values.map(|values| complaint(asked, &values)) {
                Ok(None) => false,
                Ok(Some(text)) | Err(text) => {
                    *why = text;
                    true
                }
            }
        });
        assert!(began.elapsed() < PATIENCE, "not answered: {pending:#?}{}", bed.logs());
    }
    let alerts = prometheus.alerts();
    assert!(alerts.len() >= 19, "{alerts:?}");
    assert!(alerts.values().all(|state| state == "inactive"), "a sound fabric alerts nobody: {alerts:?}");
    bed.ok(&["manager", "stop"]);
    for name in ["WeftManagerSilent", "WeftNodeWithoutManager", "WeftMemberNotScraped"] {
        wait_until(name, || prometheus.alerts()[name] != "inactive");
    }
}
