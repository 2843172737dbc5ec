//! The coverage-guided engine: libFuzzer on the target that `WEFT_FUZZ_TARGET` names. `scripts/fuzz.sh` builds it with
//! the counters that it goes by, and runs it. With `WEFT_FUZZ_SEEDS` the target's seeds are first written to that folder.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use std::sync::OnceLock;

static TARGET: OnceLock<&'static weft_fuzz::Target> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("WEFT_FUZZ_TARGET").unwrap_or_default();
        let target = weft_fuzz::target(&name).unwrap_or_else(|| panic!("WEFT_FUZZ_TARGET is '{name}': no such target"));
        if let Some(folder) = std::env::var_os("WEFT_FUZZ_SEEDS") {
            for (i, seed) in (target.seeds)().iter().enumerate() {
                std::fs::write(Path::new(&folder).join(format!("seed-{i}")), seed).expect("the folder can be written");
            }
        }
        TARGET.set(target).expect("it is set once");
    },
    |input: &[u8]| TARGET.get().expect("it was set at the beginning").run(input)
);
