//! Data of files through the client, over real targets and the real manager: inodes are apart from each other
//! and from volumes, parts of blocks are kept, and what is deleted gives its space back.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest};
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric, File, FileLayout, FileSystem};
use weft_rt::sim::Sim;
use weft_rt::sync::join_all;
use weft_rt::{Buf, now, sleep};
use weft_sim::{Bed, BedShape, KnowFiles};
use weft_types::{BLOCK_SIZE, Durations, VolumeId};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Virtual time in which anything here happens.
const WITHIN: Duration = Duration::from_secs(60);

fn shape() -> BedShape {
    let durations =
        Durations { lease_ms: 500, drift_per_mille: 10, session_ms: 4_000, rebuild_after_ms: 3_600_000 };
    BedShape { nodes: 4, drives: 1, parts: 1, targets: 1, drive_bytes: 64 << 20, copies: 2, durations }
}

async fn start() -> (Rc<Bed>, KnowFiles) {
    let know_files = KnowFiles::begin();
    let bed = Bed::start(shape()).await;
    bed.create_volume("shared", 2, 2).await;
    bed.create_file_system("files", 2, 2).await;
    (bed, know_files)
}

async fn mount(bed: &Rc<Bed>, client: &str) -> FileSystem {
    let fabric = Fabric::connect(&bed.managers(), client).await.expect("there is a manager");
    let options = AttachOptions { mode: AttachMode::Shared, ..Default::default() };
    fabric.attach_file_system("files", options).await.expect("it attaches")
}

fn file(files: &FileSystem, inode: u64) -> File {
    files.file(inode, files.default_layout().expect("it is there")).expect("it fits")
}

async fn bytes(file: &File, offset: u64, length: u64) -> Vec<u8> {
    let bufs = file.read(offset, length).await.expect("it is served");
    bufs.iter().flat_map(|buf| buf.iter().copied()).collect()
}

async fn write(file: &File, offset: u64, data: Vec<u8>) {
    file.write(offset, vec![Buf::from(data)]).await.expect("it is served");
}

/// The volumes and file systems of which some drive holds something.
async fn held(bed: &Rc<Bed>) -> BTreeSet<VolumeId> {
    let mut held = BTreeSet::new();
    for store in bed.nodes.iter().flat_map(|n| n.stores()) {
        for group in store.groups() {
            held.extend(store.volumes_in(group).await.expect("it can be read"));
        }
    }
    held
}

/// A file system grows into a drive while a client has it attached: the client waits for a map that has the
/// set in which another one has written a file.
#[test]
fn a_file_in_a_set_that_a_client_does_not_know_yet_is_read_as_soon_as_it_does() {
    Sim::new(3).block_on(async {
        let _know_files = KnowFiles::begin();
        let bed = Bed::start(shape()).await;
        bed.all_drives_are_there().await;
        bed.evacuate(3, 0, false).await;
        bed.create_file_system("files", 2, 2).await;
        bed.evacuate(3, 0, true).await;
        let (old, new) = (mount(&bed, "old").await, mount(&bed, "new").await);
        let before = old.default_layout().expect("it is there");
        let grow = ApiRequest::FsGrow { name: "files".into(), dry_run: false };
        let ApiAnswer::FileSystem { file_system, warnings, .. } = bed.api(grow).await else { panic!() };
        assert_eq!((file_system.sets.len(), warnings), (2, vec![]));
        // Both hear of it a moment later.
        let layout = FileLayout { set: 1, ..before };
        assert_eq!(old.default_layout().expect("it is there"), before, "it has the map of before");
        let content: Vec<u8> = (0..40 * BLOCK).map(|at| at as u8).collect();
        write(&new.file(5, layout).expect("it fits"), 0, content.clone()).await;
        assert!(bytes(&old.file(5, layout).expect("it fits"), 0, 40 * BLOCK).await == content);
        assert_eq!(old.default_layout().expect("it is there"), layout);
        // A request about a set that no map has fails after its timeout.
        let none = FileLayout { set: 2, ..before };
        let fabric = Fabric::connect(&bed.managers(), "c").await.expect("there is a manager");
        let io_timeout = Duration::from_secs(2);
        let options = AttachOptions { mode: AttachMode::Shared, io_timeout, ..Default::default() };
        let files = fabric.attach_file_system("files", options).await.expect("it attaches");
        let began = now();
        let read = files.file(5, none).expect("it may be there later").read(0, BLOCK).await;
        assert!(matches!(read, Err(ClientError::Layout(_))), "{read:?}");
        assert!(began.elapsed() >= io_timeout);
        assert!(files.file(5, FileLayout { set: 64, ..before }).is_err(), "there are never so many");
    });
}

#[test]
fn inodes_never_touch_each_others_blocks_and_what_is_deleted_is_given_back() {
    Sim::new(1).block_on(async {
        let (bed, _know_files) = start().await;
        let files = mount(&bed, "a").await;
        let map = bed.map().await;
        let id = map.volume_named("files").expect("it was made").id;
        let volume = map.volume_named("shared").expect("it was made").id;
        // Over the ends of stripe units, so that each has several objects.
        let inodes = [1, 2, u64::MAX];
        let content = |inode: u64| -> Vec<u8> {
            (0..40 * BLOCK).map(|at| (at / 7).wrapping_add(inode) as u8).collect()
        };
        join_all(inodes.map(|inode| {
            let file = file(&files, inode);
            async move { write(&file, 3 * BLOCK, content(inode)).await }
        }))
        .await;
        let shared = weft_sim::workload::attach(&bed.managers(), "shared", "b", AttachMode::Shared).await;
        shared.write(3 * BLOCK, vec![Buf::from(vec![9; BLOCK_SIZE])]).await.expect("it is served");
        for inode in inodes {
            assert!(bytes(&file(&files, inode), 3 * BLOCK, 40 * BLOCK).await == content(inode), "{inode}");
        }
        assert_eq!(bytes(&file(&files, 3), 0, 4 * BLOCK).await, vec![0; 4 * BLOCK_SIZE]);
        file(&files, 1).discard(0, 100 * BLOCK).await.expect("it is served");
        assert!(bytes(&file(&files, 2), 3 * BLOCK, 40 * BLOCK).await == content(2));
        let extents = file(&files, 1).block_status(0, 64 * BLOCK).await.expect("it is served");
        assert!(extents.iter().all(|extent| extent.is_zero), "{extents:?}");
        let system = map.volume_named("files:0").expect("it was made").id;
        assert_eq!(held(&bed).await, BTreeSet::from([volume, id, system]));
        files.detach().await;
        let delete = ApiRequest::FsDelete { name: "files".into(), force: false, dry_run: false };
        assert!(matches!(bed.api(delete).await, ApiAnswer::FileSystemDeleting { .. }));
        let began = now();
        while bed.map().await.volumes.len() > 1 {
            assert!(began.elapsed() < WITHIN, "it is still there");
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(held(&bed).await, BTreeSet::from([volume]));
        let left = shared.read(3 * BLOCK, BLOCK).await.expect("it is served");
        assert_eq!(left[0][..], [9; BLOCK_SIZE]);
    });
}

#[test]
fn parts_of_blocks_are_changed_and_kept_and_other_clients_see_them() {
    Sim::new(2).block_on(async {
        let (bed, _know_files) = start().await;
        let (a, b) = (mount(&bed, "a").await, mount(&bed, "b").await);
        let mut expected = vec![0; 40_000];
        let one = file(&a, 5);
        for (at, length, byte) in [(1, 47_008 / 2, 1u8), (4095, 2, 2), (17, 4096 * 3, 3), (20_000, 20_000, 4)]
        {
            expected[at..at + length].fill(byte);
            write(&one, at as u64, vec![byte; length]).await;
        }
        // Writes to neighbouring parts of one block at once, through handles of their own.
        let parts = (0..8).map(|n| {
            let part = file(&a, 5);
            async move { write(&part, 8192 + n * 512, vec![10 + n as u8; 512]).await }
        });
        join_all(parts).await;
        for n in 0..8 {
            expected[8192 + n * 512..8192 + (n + 1) * 512].fill(10 + n as u8);
        }
        file(&a, 5).write_zeroes(30_000, 7).await.expect("it is served");
        expected[30_000..30_007].fill(0);
        assert!(bytes(&file(&b, 5), 0, 40_000).await == expected);
        assert!(bytes(&file(&b, 5), 4090, 10).await == expected[4090..4100]);
        assert!(bytes(&file(&b, 5), 4090, 0).await.is_empty());
    });
}

#[test]
fn what_does_not_fit_is_refused_and_the_last_block_of_all_is_there() {
    Sim::new(3).block_on(async {
        let (bed, _know_files) = start().await;
        let files = mount(&bed, "a").await;
        let layout = files.default_layout().expect("it is there");
        for layout in [
            FileLayout { set: 64, ..layout },
            FileLayout { copies: 3, ..layout },
            FileLayout { width: 0, ..layout },
            FileLayout { unit_blocks: 3, ..layout },
        ] {
            assert!(matches!(files.file(1, layout), Err(ClientError::Layout(_))), "{layout:?}");
        }
        let narrow = FileLayout { width: 1, ..layout };
        let file = files.file(7, narrow).expect("it fits");
        let end = file.size_max();
        assert_eq!(end, (1 << 32) * (64 << 20));
        write(&file, end - BLOCK, vec![6; BLOCK_SIZE]).await;
        assert_eq!(bytes(&file, end - 2 * BLOCK, 2 * BLOCK).await[BLOCK_SIZE..], [6; BLOCK_SIZE]);
        for (offset, length) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (1, u64::MAX)] {
            let refused = file.read(offset, length).await;
            assert!(matches!(refused, Err(ClientError::OutOfBounds { .. })), "{offset}+{length}");
        }
    });
}

#[test]
fn only_its_server_attaches_a_system_volume_and_readers_change_nothing() {
    Sim::new(4).block_on(async {
        let (bed, _know_files) = start().await;
        let fabric = Fabric::connect(&bed.managers(), "meta").await.expect("there is a manager");
        let name = weft_types::system_volume_name("files", 0);
        let refused = fabric.attach(&name, AttachOptions::default()).await;
        assert!(matches!(refused, Err(ClientError::Refused { .. })), "{:?}", refused.err());
        let refused = fabric.attach("files", AttachOptions::default()).await;
        assert!(matches!(refused, Err(ClientError::Refused { .. })), "{:?}", refused.err());
        let server = loop {
            let map = bed.map().await;
            let listed = map.volume_named("files").expect("it was made");
            match listed.files().expect("it is one").shards[0].server {
                Some(server) => break server,
                None => sleep(Duration::from_millis(10)).await,
            }
        };
        let map = bed.map().await;
        let other = *map.targets.keys().find(|target| **target != server).expect("there are four");
        let refused = fabric.attach_system_volume(&name, other, AttachOptions::default()).await;
        assert!(matches!(refused, Err(ClientError::Refused { .. })), "{:?}", refused.err());
        let options = AttachOptions { mode: AttachMode::ReadOnly, ..Default::default() };
        let reader = fabric.attach_file_system("files", options).await.expect("it attaches");
        let refused = file(&reader, 1).write(0, vec![Buf::from(vec![1; 512])]).await;
        assert!(matches!(refused, Err(ClientError::ReadOnly { .. })));
        assert_eq!(bytes(&file(&reader, 1), 0, 512).await, [0; 512]);
    });
}
