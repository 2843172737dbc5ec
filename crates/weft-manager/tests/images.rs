//! A manager's store as the program of the first release left it: it must open, and hold exactly what was in
//! it.
//!
//! The files are made once, by that program, and are never made again: `WEFT_BLESS_IMAGES=1 cargo test -p
//! weft-manager --test suite images` makes new ones, for a format that follows.

use crate::harness;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use harness::*;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use weft_manager::{
    EmbeddedStore, Journal, Manager, ManagerOptions, at_once, load_journal, load_map, put_journal, put_map,
};
use weft_rt::sim::Sim;
use weft_types::{AttachMode, DriveId, FabricMap, MapVersion};

/// Bytes of the largest image that is kept.
const PACKED_BYTES_MAX: usize = 100 << 10;

fn golden(kind: &str) -> PathBuf {
    PathBuf::from(format!("{}/tests/golden/store-v1.{kind}", env!("CARGO_MANIFEST_DIR")))
}

/// A folder that is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("weft-manager-images-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a map says, in words that do not depend on how it is written down.
fn describe(map: &FabricMap, journal: &Journal) -> String {
    let mut out = String::new();
    writeln!(out, "fabric {} at {}, next number {}", map.fabric, map.version, map.next_id).unwrap();
    for node in map.nodes.values() {
        let addr = &map.first_target_of(node.id).expect("a node has a target").addr;
        writeln!(out, "node {} {} at {addr}", node.id.0, node.name).unwrap();
    }
    for drive in map.drives.values() {
        let (id, path, state) = (drive.id, &drive.path, drive.state);
        writeln!(
            out,
            "drive {id} on node {} at {path}, {} blocks, {state:?}",
            drive.node.0, drive.capacity.0
        )
        .unwrap();
    }
    for group in map.groups.values() {
        writeln!(out, "group {} in epoch {}, {} copies", group.id.0, group.epoch.0, map.copies_of(group))
            .unwrap();
        for slot in &group.slots {
            writeln!(out, "  {} {} since {}", slot.drive, slot.role, slot.since.0).unwrap();
        }
    }
    for (group, relocation) in &map.relocations {
        writeln!(out, "group {} passes from {} to {}", group.0, relocation.from, relocation.to).unwrap();
    }
    for volume in map.volumes.values() {
        let (id, name, blocks) = (volume.id.0, &volume.name, volume.size.0);
        writeln!(out, "volume {id} {name}: {blocks} blocks, generation {}", volume.generation.0).unwrap();
    }
    for session in map.sessions.values() {
        let (id, slot, volume) = (session.id.0, session.slot.0, session.volume.0);
        writeln!(out, "session {id} slot {slot} of volume {volume} by {}: {}", session.client, session.mode)
            .unwrap();
    }
    writeln!(out, "removed drives {:?}", map.removed_drives).unwrap();
    for (number, event) in &journal.events {
        writeln!(out, "event {number} {}", String::from_utf8_lossy(event)).unwrap();
    }
    let text = |bytes: &Option<Vec<u8>>| bytes.as_deref().map(|b| String::from_utf8_lossy(b).into_owned());
    writeln!(out, "troubles {:?}\ncommits {:?}", text(&journal.troubles), text(&journal.commits)).unwrap();
    out
}

/// A fabric in use: volumes, sessions of each mode, one node that was evicted and one that is emptied.
fn make(file: &Path) {
    let (store, service) = Sim::new(1).block_on(async {
        let (service, targets, views) = fabric(5).await;
        for (name, copies) in [("one", 1), ("two", 2), ("three", 3), ("gone", 2)] {
            operate(volume_of(name, copies)).await.unwrap();
        }
        attach("two", AttachMode::Shared, false).await.unwrap();
        attach("two", AttachMode::ReadOnly, false).await.unwrap();
        attach("three", AttachMode::Exclusive, false).await.unwrap();
        let delete = weft_api::ApiRequest::VolumeDelete { name: "gone".into(), force: true, dry_run: false };
        operate(delete).await.unwrap();
        targets[4].kill();
        let is_out = || roles(&service.map(), 5).contains(&weft_types::Role::Out);
        eventually("the dead node is evicted", ms(20_000), is_out).await;
        let evacuate = weft_api::ApiRequest::DriveEvacuate {
            id: DriveId(4).to_string(),
            cancel: false,
            device: false,
            dry_run: false,
        };
        operate(evacuate).await.unwrap();
        let passes = || !service.map().relocations.is_empty();
        eventually("a member passes to another drive", ms(20_000), passes).await;
        drop(views);
        (at_once(load_journal(&service.store)).unwrap(), service.map())
    });
    let journal = store;
    let embedded = EmbeddedStore::open_or_make(file).unwrap();
    at_once(put_map(&embedded, &service)).unwrap();
    at_once(put_journal(&embedded, &journal)).unwrap();
    drop(embedded);
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&std::fs::read(file).unwrap()).unwrap();
    std::fs::write(golden("redb.gz"), packed.finish().unwrap()).unwrap();
    std::fs::write(golden("txt"), describe(&service, &journal)).unwrap();
}

#[test]
fn the_store_of_the_first_release_opens_and_holds_what_it_held() {
    let folder = Folder::new();
    if std::env::var_os("WEFT_BLESS_IMAGES").is_some() {
        make(&folder.0.join("made.redb"));
    }
    let packed = std::fs::read(golden("redb.gz")).unwrap();
    assert!(packed.len() <= PACKED_BYTES_MAX, "it has {} bytes", packed.len());
    let mut bytes = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    let file = folder.0.join("map.redb");
    std::fs::write(&file, bytes).unwrap();
    let wanted = std::fs::read_to_string(golden("txt")).unwrap();

    let store = EmbeddedStore::open(&file).unwrap();
    let map = at_once(load_map(&store)).unwrap().unwrap();
    assert_eq!(describe(&map, &at_once(load_journal(&store)).unwrap()), wanted);
    // A manager starts on it, and the map is the same.
    let fabric = map.fabric;
    let started = Sim::new(2).block_on(async move {
        let options = ManagerOptions { fabric: Some(fabric), ..ManagerOptions::default() };
        FabricMap::clone(&Manager::start(store, options).await.unwrap().map())
    });
    assert_eq!(started, map);
    // What is committed to it is there when it is opened again.
    let store = EmbeddedStore::open(&file).unwrap();
    let next = FabricMap { version: MapVersion(map.version.0 + 1), ..map };
    at_once(put_map(&store, &next)).unwrap();
    drop(store);
    assert_eq!(at_once(load_map(&EmbeddedStore::open(&file).unwrap())).unwrap(), Some(next));
}
