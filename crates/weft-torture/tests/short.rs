//! A short torture: rounds of faults on real processes, with a thread that stands still and a device that is
//! pulled between them, and the verdict. `make torture MINUTES=N` goes on for longer.

use std::process::Command;

#[test]
fn no_acknowledged_write_is_lost_in_a_short_torture() {
    let mut torture = Command::new(env!("CARGO_BIN_EXE_weft-torture"));
    torture.args(["--rounds", "3", "--round", "8", "--weft"]).arg(weft_tests::weft());
    let output = torture.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("{said}");
}
