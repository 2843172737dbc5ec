//! What is fuzzed: the table of all targets, and how one of them is held to its property.

use crate::{cli, document, drive, files, memory, nbd, wire};

/// Memory that any target may take, whatever its input: what its own scene needs.
const ALLOWANCE_BYTES: usize = 1 << 20;

/// Memory that a target may take for each byte of its input: a number of JSON, or a record of nine bytes, becomes a
/// value of a hundred bytes or two, in vectors that have grown by doubling, beside a second one to compare it with.
const BYTES_PER_BYTE: usize = 1024;

/// A decoder, and the property that it is held to.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is that of its folder in the corpus.
    pub name: &'static str,
    /// How many inputs the short run tries.
    pub tries: usize,
    /// Bytes of the scene beside [`ALLOWANCE_BYTES`]: a simulated drive, a page with charts.
    scene_bytes: usize,
    /// Panics if the decoder does not keep to its property.
    check: fn(&[u8]),
    /// Inputs that the decoder accepts.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

impl Target {
    const fn new(name: &'static str, tries: usize, check: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
        Target { name, tries, scene_bytes: 0, check, seeds }
    }

    const fn with_scene(self, scene_bytes: usize) -> Target {
        Target { scene_bytes, ..self }
    }

    /// Tries one input.
    ///
    /// # Panics
    /// If the decoder panics, or does not keep to its property, or takes more memory than the input accounts for.
    pub fn run(&self, input: &[u8]) {
        let most = self.scene_bytes + ALLOWANCE_BYTES + BYTES_PER_BYTE * input.len();
        let taken = memory::peak_of(|| (self.check)(input));
        assert!(taken <= most, "{} takes {taken} bytes for an input of {} bytes", self.name, input.len());
    }
}

/// Every target. The numbers of tries make the short run one of a few seconds.
pub const TARGETS: &[Target] = &[
    Target::new("frame", 50_000, wire::frame, wire::frame_seeds),
    Target::new("data-request", 50_000, wire::data_request, wire::data_request_seeds),
    Target::new("data-answer", 50_000, wire::data_answer, wire::data_answer_seeds),
    Target::new("peer", 50_000, wire::peer, wire::peer_seeds),
    Target::new("control", 25_000, wire::control, wire::control_seeds),
    Target::new("map", 10_000, document::map, document::map_seeds),
    Target::new("pieces", 25_000, document::pieces, document::pieces_seeds),
    Target::new("map-part", 25_000, document::map_part, document::map_part_seeds),
    Target::new("backup", 10_000, document::backup, document::backup_seeds),
    Target::new("collected", 10_000, document::collected, document::collected_seeds),
    Target::new("api", 25_000, document::api, document::api_seeds),
    Target::new("nbd-option", 25_000, nbd::option, nbd::option_seeds).with_scene(2 << 20),
    Target::new("nbd-request", 50_000, nbd::request, nbd::request_seeds),
    Target::new("nbd-conversation", 600, nbd::conversation, nbd::conversation_seeds).with_scene(160 << 20),
    Target::new("label", 10_000, drive::label, drive::label_seeds),
    Target::new("device-label", 10_000, drive::device_label, drive::device_label_seeds),
    Target::new("superblock", 10_000, drive::superblock, drive::superblock_seeds),
    Target::new("zone-table", 10_000, drive::zone_table, drive::zone_table_seeds),
    Target::new("record", 50_000, drive::record, drive::record_seeds),
    Target::new("leaf", 50_000, drive::leaf, drive::leaf_seeds),
    Target::new("page", 50_000, drive::page, drive::page_seeds),
    Target::new("state", 50_000, drive::state, drive::state_seeds),
    Target::new("image", 800, drive::image, drive::image_seeds).with_scene(64 << 20),
    Target::new("image-format-1", 400, drive::image_of_format_1, drive::image_seeds).with_scene(64 << 20),
    Target::new("file-request", 50_000, files::request, files::request_seeds),
    Target::new("file-answer", 50_000, files::answer, files::answer_seeds),
    Target::new("shard-changes", 25_000, files::changes, files::changes_seeds),
    Target::new("shard-log-block", 10_000, files::log_block, files::log_block_seeds),
    Target::new("shard-superblock", 10_000, files::superblock, files::superblock_seeds),
    Target::new("shard-page", 25_000, files::page, files::page_seeds),
    Target::new("value", 50_000, cli::value, cli::value_seeds),
    Target::new("local-config", 10_000, cli::local_config, cli::local_config_seeds),
    Target::new("watch-record", 600, cli::watch_record, cli::watch_record_seeds).with_scene(32 << 20),
];

/// The target with this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
