//! A fabric is removed though something is in the way: nothing is left without being named, and the command can be run
//! again.

mod bed;

use bed::{Bed, kill};
use std::fs;

#[test]
fn a_node_that_hangs_and_a_file_in_the_way_keep_nothing_from_being_removed_in_the_end() {
    let bed = Bed::new("destroy");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "8MiB"]);
    // One node does not react any more, another one has died, and a log's place is taken.
    kill(bed.pid("node-1").expect("it runs"), "STOP");
    bed.ok(&["node", "stop", "node-2", "--kill"]);
    let log = bed.fabric().join("log/node-2.log");
    fs::remove_file(&log).expect("removed");
    fs::create_dir_all(log.join("mine")).expect("made");
    let destroy = ["down", "--destroy", "--yes"];
    for _ in 0..2 {
        let said = bed.weft(&destroy);
        said.fails(1, &["cannot remove", "still there: ", "node-2.log", "run the command again"]);
        let (gone, left) = said.err.split_once("; still there: ").expect("both are told");
        assert!(left.contains("fabric.json") && !left.contains("drive-1.img"), "{left}");
        assert!(gone.contains("removed by then: "), "{gone}");
        assert!(!bed.fabric().join("nodes/node-1/drive-1.img").exists());
        assert!(bed.pid("manager").is_none() && bed.pid("node-1").is_none(), "everything is stopped");
    }
    fs::remove_dir_all(&log).expect("removed");
    let said = bed.ok(&destroy);
    assert!(said.contains("is not running") && said.contains("fabric.json"), "{said}");
    assert!(!bed.fabric().exists(), "nothing is left");
    bed.weft(&destroy).fails(3, &["no fabric in"]);
}
