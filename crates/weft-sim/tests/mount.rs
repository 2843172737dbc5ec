//! File systems as their users see them, over real nodes, a real manager and the servers of shards beside the
//! targets: what was answered stays, whatever node dies or leaves.

use std::rc::Rc;
use std::time::Duration;
use weft_client::{AttachMode, Fabric};
use weft_fs::{FsError, Mount, NewFile, Source};
use weft_rt::sim::{Crash, Sim};
use weft_rt::{now, sleep};
use weft_sim::{Bed, BedShape, KnowFiles};
use weft_types::{Durations, TargetId};
use weft_wire::files::FileError;

/// Virtual time in which anything here happens.
const WITHIN: Duration = Duration::from_secs(30);

const NEW: NewFile = NewFile { mode: 0o644, umask: 0, uid: 7, gid: 8 };

async fn start() -> (Rc<Bed>, KnowFiles) {
    let know_files = KnowFiles::begin();
    let durations =
        Durations { lease_ms: 500, drift_per_mille: 10, session_ms: 4_000, rebuild_after_ms: 3_600_000 };
    let drive_bytes = 64 << 20;
    let shape = BedShape { nodes: 4, drives: 1, parts: 1, targets: 1, drive_bytes, copies: 2, durations };
    let bed = Bed::start(shape).await;
    bed.create_file_system("files", 2, 2).await;
    (bed, know_files)
}

async fn mount(bed: &Rc<Bed>, client: &str) -> Mount {
    let fabric = Fabric::connect(&bed.managers(), client).await.expect("there is a manager");
    Mount::attach(&fabric, "files", AttachMode::Shared, WITHIN).await.expect("it attaches")
}

/// The server that the map names for the shard.
async fn server(bed: &Rc<Bed>) -> Option<TargetId> {
    let map = bed.map().await;
    map.volume_named("files")?.files()?.shards[0].server
}

/// Bytes as a source.
struct Bytes(Vec<u8>);

impl Source for Bytes {
    async fn next(&mut self, most: usize) -> Result<Vec<u8>, String> {
        let rest = self.0.split_off(most.min(self.0.len()));
        Ok(std::mem::replace(&mut self.0, rest))
    }
}

fn content(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at / 5) as u8 ^ seed).collect()
}

async fn put(mount: &Mount, path: &str, content: Vec<u8>) -> Result<u64, FsError> {
    let made = mount.write_file(path.as_bytes(), NEW, &mut Bytes(content), |_| {}).await;
    made.map(|made| made.size)
}

async fn get(mount: &Mount, path: &str) -> Result<Vec<u8>, FsError> {
    let mut found = Vec::new();
    let take = |bytes: &[u8]| {
        found.extend_from_slice(bytes);
        Ok(())
    };
    mount.read_file(path.as_bytes(), take).await.map(|_| found)
}

async fn names(mount: &Mount, path: &str) -> Vec<String> {
    let found = mount.names().find(path.as_bytes(), true).await.expect("it is there");
    let listed = mount.names().list(found.inode, path.as_bytes()).await.expect("it is a directory");
    let mut names: Vec<String> =
        listed.into_iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
    names.sort();
    names
}

#[test]
fn what_one_client_has_written_another_one_reads() {
    Sim::new(1).block_on(async {
        let (bed, _know_files) = start().await;
        let (a, b) = (mount(&bed, "a").await, mount(&bed, "b").await);
        a.names().make_directory(b"/team", NEW).await.expect("it is free");
        for length in [0, 1, 4095, 4096, 4097, 1 << 20, (9 << 20) + 17] {
            let content = content(length, length as u8);
            assert_eq!(put(&a, "/team/file", content.clone()).await, Ok(length as u64));
            assert!(get(&b, "/team/file").await == Ok(content), "{length} bytes");
        }
        assert_eq!(names(&b, "/team").await, ["file"]);
        b.names().remove(b"/team/file").await.expect("it is there");
        let gone = get(&a, "/team/file").await.expect_err("it is gone");
        assert_eq!(gone.refusal(), Some(FileError::NotFound));
    });
}

#[test]
fn a_shard_is_served_again_after_its_server_has_died() {
    for seed in 1..=4 {
        Sim::new(seed).block_on(async {
            let (bed, _know_files) = start().await;
            let files = mount(&bed, "a").await;
            for round in 0..3 {
                let path = format!("/before-{round}");
                assert_eq!(put(&files, &path, content(10_000, round)).await, Ok(10_000));
                let former = server(&bed).await.expect("one is named");
                let map = bed.map().await;
                let node = map.node_of(former).expect("it is listed").name.clone();
                let dead = bed.nodes.iter().position(|n| n.name == node).expect("it is one of them");
                bed.kill_node(dead, Crash::Process);
                let died = now();
                files
                    .names()
                    .make_directory(format!("/after-{round}").as_bytes(), NEW)
                    .await
                    .expect("it is served");
                assert!(died.elapsed() < Duration::from_secs(4), "{:?}", died.elapsed());
                assert_ne!(server(&bed).await, Some(former));
                assert!(get(&files, &path).await == Ok(content(10_000, round)), "{path}");
                bed.start_node(dead);
                while bed.has_all_copies(&bed.map().await).is_err() {
                    sleep(Duration::from_millis(50)).await;
                }
            }
            assert_eq!(names(&files, "/").await.len(), 6);
        });
    }
}
