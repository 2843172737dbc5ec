//! The format of a shard is what `docs/format/meta.md` says: a recorded image is opened and holds what it
//! held, and the same operations lead to the same bytes. `WEFT_GOLDEN=write` records it for the first time;
//! an image of a format that was released never changes. Shards of before are opened as well.

mod memory;

use memory::{Blocks, Memory};
use std::fmt::Write;
use std::path::PathBuf;
use weft_meta::*;
use weft_rt::sim::Sim;
use weft_types::{FileKind, FileTime, InodeNumber, SessionId};
use weft_wire::files::*;

const NAME: ShardName = ShardName { file_system: 0x1122_3344, shard: 0 };

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// One operation of each kind that changes something.
fn operations() -> Vec<Operation> {
    let at = |name: &str| NameIn { directory: InodeNumber::ROOT, name: name.as_bytes().to_vec() };
    let made = |kind, target: &[u8]| {
        let device = if kind == FileKind::BlockDevice { 0x0801 } else { 0 };
        NewInode { kind, mode: 0o4751, umask: 0, uid: 1000, gid: 100, device, target: target.to_vec() }
    };
    let time = SetTime::At(FileTime { seconds: -5, nanoseconds: 999_999_999 });
    let changes =
        AttributeChanges { size: Some(1 << 40), accessed: Some(time), ..AttributeChanges::default() };
    let file = InodeNumber(2);
    let whole = InodeNumber::whole_of(0);
    let user = QuotaOf { kind: QuotaKind::User, id: 1000 };
    let project = QuotaOf { kind: QuotaKind::Project, id: 0x0102_0304 };
    let in_folder = |name: &str| NameIn { directory: InodeNumber(3), name: name.as_bytes().to_vec() };
    vec![
        Operation::Create(at("file"), made(FileKind::Regular, b"")),
        Operation::Create(at("folder"), made(FileKind::Directory, b"")),
        Operation::Create(at("link"), made(FileKind::Symlink, &[b'/'; 1500])),
        Operation::Create(at("disk"), made(FileKind::BlockDevice, b"")),
        Operation::CreateUnnamed(InodeNumber::ROOT, made(FileKind::Regular, b"")),
        Operation::Link(file, in_folder("again")),
        Operation::Change(file, changes),
        Operation::SetXattr(file, b"user.note".to_vec(), b"value".to_vec(), XattrMode::Either),
        Operation::Rename(at("disk"), at("file"), RenameMode::Exchange),
        Operation::Unlink(at("file")),
        Operation::Create(at("folder"), made(FileKind::Regular, b"")),
        Operation::CreateOpen(at("shared"), made(FileKind::Regular, b""), 1 << 18),
        Operation::Hold(InodeNumber(7), HoldMode::Shared),
        Operation::Grow(InodeNumber(7), 8192, FileTime { seconds: 4, nanoseconds: 5 }),
        Operation::SetQuota(whole, user, QuotaAmount { bytes: 1 << 30, inodes: 1000 }, InodeNumber(0)),
        Operation::SetQuota(whole, project, QuotaAmount::UNLIMITED, InodeNumber(3)),
        Operation::SetProject(InodeNumber(3), 0x0102_0304),
        Operation::CreateOpen(in_folder("limited"), made(FileKind::Regular, b""), 1 << 18),
    ]
}

async fn image() -> Blocks {
    let medium = Memory::of(Blocks::new());
    format_shard(&medium, &ShardFormat::new(NAME, *b"0123456789abcdef", *b"layout-layou")).await.unwrap();
    let shard = Shard::open(medium.attach()).await.unwrap();
    for (n, operation) in operations().into_iter().enumerate() {
        let number = n as u64 + 1;
        let request = FileRequest { session: SessionId(77), number, answered: n as u64 / 2, operation };
        shard.serve(&request).await.unwrap();
        if n == 6 {
            shard.checkpoint().await.unwrap();
        }
    }
    medium.contents()
}

fn to_text(blocks: &Blocks) -> String {
    let mut text = String::new();
    for (block, bytes) in blocks {
        let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        write!(text, "block {block}").unwrap();
        for line in bytes[..length].chunks(32) {
            text.push('\n');
            line.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
        }
        text.push('\n');
    }
    text
}

fn from_text(text: &str) -> Blocks {
    let mut blocks = Blocks::new();
    for part in text.split("block ").skip(1) {
        let (block, hex) = part.split_once('\n').unwrap();
        let hex: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let digits = hex.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap());
        let mut bytes: Vec<u8> = digits.collect();
        bytes.resize(4096, 0);
        blocks.insert(block.parse().unwrap(), bytes.into());
    }
    blocks
}

/// Images of shards that former releases have written, the newest one last: that is what this one writes.
const IMAGES: [&str; 5] =
    ["shard-1", "shard-1-directories", "shard-1-shared", "shard-1-log-given-back", "shard-1-quotas"];

/// All items as text, values too.
fn listing(shard: &Shard<Memory>) -> String {
    shard.with_tables(|tables| {
        let line = |(key, value): (&Key, &Value)| format!("{key:?} = {}\n", value.escape_ascii());
        tables.items().map(line).collect()
    })
}

#[test]
fn a_recorded_shard_is_opened_and_written_alike() {
    Sim::new(1).block_on(async {
        let text = to_text(&image().await);
        let opened = async |blocks| {
            listing(&Shard::open(Memory::of(blocks).attached_again(9).attach()).await.unwrap())
        };
        let items = opened(from_text(&text)).await;
        let file = |image: &str, what: &str| golden(&format!("{image}.{what}"));
        let newest = IMAGES[IMAGES.len() - 1];
        if std::env::var("WEFT_GOLDEN").is_ok_and(|what| what == "write") {
            std::fs::create_dir_all(golden("")).unwrap();
            for (what, text) in [("hex", &text), ("items", &items)] {
                let is_new = !file(newest, what).exists();
                assert!(is_new, "{newest}.{what} is recorded: a released format does not change");
                std::fs::write(file(newest, what), text).unwrap();
            }
        }
        for image in IMAGES {
            let recorded = std::fs::read_to_string(file(image, "hex")).unwrap();
            let held = std::fs::read_to_string(file(image, "items")).unwrap();
            assert_eq!(opened(from_text(&recorded)).await, held, "{image}");
            let is_alike = text == recorded;
            assert!(is_alike || image != newest, "other bytes are written than docs/format/meta.md says");
        }
    });
}
