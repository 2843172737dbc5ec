//! `weft fs find` from end to end.

mod bed;

use bed::{Bed, sample};
use serde_json::Value;
use std::fs;

/// The paths that are found.
fn found(bed: &Bed, args: &[&str]) -> Vec<String> {
    let said = bed.ok(&[&["fs", "find", "home"], args].concat());
    said.lines().map(str::to_owned).collect()
}

#[test]
fn files_are_found_by_what_they_are_and_lie_on() {
    let bed = Bed::new("find");
    bed.up_with(3, 1, "256MiB");
    bed.ok(&["fs", "create", "home"]);
    assert_eq!(found(&bed, &[]), ["/"]);
    bed.ok(&["fs", "mkdir", "home", "--parents", "/runs/old", "/team"]);
    fs::write(bed.path("large"), sample((1 << 20) + 1, 3)).expect("written");
    fs::write(bed.path("empty"), b"").expect("written");
    for (file, to) in
        [("large", "/runs/a.h5"), ("large", "/runs/old/b.h5"), ("empty", "/team/.c.h5"), ("empty", "/d")]
    {
        bed.ok(&["fs", "put", "home", bed.path(file).to_str().expect("text"), to]);
    }
    let all = ["/", "/d", "/runs", "/runs/a.h5", "/runs/old", "/runs/old/b.h5", "/team", "/team/.c.h5"];
    assert_eq!(found(&bed, &[]), all, "a directory before what is in it, by name");
    assert_eq!(found(&bed, &["//runs/"]), all[2..6]);
    assert_eq!(found(&bed, &["/d"]), ["/d"]);
    assert_eq!(found(&bed, &["--max-depth", "1"]), ["/", "/d", "/runs", "/team"]);
    assert_eq!(found(&bed, &["--type", "d"]), ["/", "/runs", "/runs/old", "/team"]);
    assert_eq!(found(&bed, &["--name", "*.h5"]), ["/runs/a.h5", "/runs/old/b.h5", "/team/.c.h5"]);
    assert_eq!(found(&bed, &["--size", "+1MiB"]), ["/runs/a.h5", "/runs/old/b.h5"]);
    assert_eq!(found(&bed, &["--size", "0", "--name", "?"]), ["/d"]);
    assert_eq!(found(&bed, &["--mtime", "+1h"]), [""; 0]);
    assert_eq!(
        found(&bed, &["--mtime", "-1h", "--type", "d", "--type", "l"]),
        ["/", "/runs", "/runs/old", "/team"]
    );
    assert_eq!(found(&bed, &["--owner", "4294967294"]), [""; 0]);
    assert_eq!(found(&bed, &["/runs", "-0"]), ["/runs\0/runs/a.h5\0/runs/old\0/runs/old/b.h5\0"]);

    // One copy of the file is on each of two drives; the third one has none.
    let shown = bed.json(&["fs", "layout", "show", "home", "/runs/a.h5"]);
    let drives = bed.json(&["drive", "list"]);
    let has =
        |drive: &Value| shown["drives"].as_array().expect("a list").iter().any(|on| on["drive"] == *drive);
    for drive in drives["drives"].as_array().expect("a list").iter().map(|drive| &drive["id"]) {
        let on = found(&bed, &["/runs/a.h5", "--drive", &drive.as_str().expect("an id")[..13]]);
        assert_eq!(on.len() == 1, has(drive), "{shown}");
    }
    bed.ok(&["fs", "layout", "set", "home", "/runs", "--chunk-size", "1MiB", "--targets", "1"]);
    assert_eq!(found(&bed, &["--targets", "1", "--chunk-size", "+256KiB"]), ["/runs"]);

    let lines = bed.ok(&["fs", "find", "home", "/runs", "--type", "f", "--json"]);
    let files: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("a document")).collect();
    assert_eq!(files.len(), 2, "{lines}");
    assert_eq!(
        (files[0]["path"].as_str(), files[0]["size_bytes"].as_u64()),
        (Some("/runs/a.h5"), Some((1 << 20) + 1))
    );

    bed.weft(&["fs", "find", "home", "/gone"]).fails(1, &["/gone", "weft fs ls"]);
    bed.weft(&["fs", "find", "other"]).fails(1, &["no file system 'other'"]);
    bed.weft(&["fs", "find", "home", "--drive", "zz"]).fails(1, &["zz"]);
    bed.weft(&["fs", "find", "home", "--name", "[a"]).fails_as_usage("--name [a");
    bed.weft(&["fs", "find", "home", "--mtime", "7d"]).fails_as_usage("expected a sign");
    bed.weft(&["fs", "find", "home", "--size", "+1MB"]).fails_as_usage("write MiB");
    bed.weft(&["fs", "find", "home", "-0", "--json"]).fails_as_usage("--print0");
}
