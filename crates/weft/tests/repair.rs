//! `weft bench repair` on fabrics that are as small as can be: everything happens and is told; the figures mean nothing.

mod bed;

use bed::Bed;
use serde_json::Value;
use std::fs;

fn above_zero(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

#[test]
fn a_client_beside_repair_is_measured_and_drawn() {
    let bed = Bed::new("repair-beside");
    let tiny = ["bench", "repair", "--tiny", "--only", "beside", "--rounds", "1", "--phase", "300ms"];
    // So large that the client cannot write all that was missed before the resync copies it.
    let rest = ["--working-set", "64MiB", "--out", "repair.json", "--html", "repair.html"];
    let said = bed.json(&[&tiny[..], &rest].concat());
    // On a machine that does too much else it may be void: then it says why.
    let reasons = said["void_reasons"].as_array().expect("a list");
    assert_eq!(said["void"], !reasons.is_empty(), "{said}");
    let client = &said["beside"]["clients"][0];
    assert!(said["beside"]["clients"][1].is_null() && said["scrub"].is_null(), "{said}");
    let phases: Vec<&str> =
        client["phases"].as_array().expect("phases").iter().filter_map(|p| p["phase"].as_str()).collect();
    assert_eq!(phases, ["alone", "away", "resync", "alone again", "lost", "rebuild"]);
    assert!(
        above_zero(&client["phases"][0]["p99_us"]) && above_zero(&client["phases"][3]["iops"]),
        "{client}"
    );
    assert!(above_zero(&client["resync_p99_ratio"]), "{client}");
    let round = &client["rounds"][0];
    assert!(above_zero(&round["resync"]["bytes"]) && above_zero(&round["rebuild"]["bytes"]), "{round}");
    assert!(above_zero(&said["beside"]["raw"]["write_mb_per_s"]), "{said}");
    let events = round["timeline"]["events"].as_array().expect("events");
    assert_eq!(events.len(), 7, "{events:?}");

    let file: Value = serde_json::from_slice(&fs::read(bed.path("repair.json")).expect("it was written"))
        .expect("it is JSON");
    assert_eq!(file["beside"], said["beside"]);
    let html = fs::read_to_string(bed.path("repair.html")).expect("it was written");
    assert_eq!(html.matches("<svg").count(), 2, "latency and rate over time");
    assert!(html.contains("is lost with its drive") && !html.contains("<script"), "{html}");
}

#[test]
fn spread_scrubs_and_write_amplification_are_measured() {
    let bed = Bed::new("repair-others");
    fs::create_dir(bed.path("drives")).expect("the folder is new");
    let tiny = ["bench", "repair", "--tiny", "--rounds", "1", "--phase", "300ms", "--drives", "drives"];
    let only = ["--only", "spread", "--only", "scrub", "--only", "amplify"];
    let said = bed.json(&[&tiny[..], &only].concat());
    let spread = &said["spread"];
    assert_eq!(spread["drives"].as_array().map(Vec::len), Some(7), "{spread}");
    assert!(above_zero(&spread["copied_bytes"]) && above_zero(&spread["seconds"]), "{spread}");
    let scrub = &said["scrub"];
    assert!(above_zero(&scrub["alone_mb_per_s"]) && above_zero(&scrub["beside_mb_per_s"]), "{scrub}");
    let rows = said["amplify"]["rows"].as_array().expect("rows");
    assert_eq!(rows.iter().filter_map(|row| row["block_bytes"].as_u64()).collect::<Vec<_>>(), [4096, 65536]);
    // Where the temporary folder is on no disk the kernel counts nothing.
    assert!(rows.iter().all(|row| row["data"].as_f64() >= Some(0.99)), "{rows:?}");
    assert_eq!(fs::read_dir(bed.path("drives")).expect("it is there").count(), 0, "nothing stays behind");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let bed = Bed::new("repair-refuse");
    let fails =
        |rest: &[&str], words: &[&str]| bed.weft(&[&["bench", "repair"], rest].concat()).fails(2, words);
    fails(&["--phase", "1ms"], &["at least 100 ms"]);
    fails(&["--working-set", "5000"], &["multiple of 4096"]);
    fails(&["--working-set", "2GiB"], &["up to the volume's"]);
    fails(&["--drives", "nowhere"], &["not a folder"]);
    fails(&["--load", "0"], &["--load"]);
    bed.weft(&["bench", "repair", "--html", "no/such/page"]).fails(1, &["no/such"]);
}
