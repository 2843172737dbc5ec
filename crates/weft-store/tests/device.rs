//! Devices of several parts: each part is a drive by itself, and what is wrong with the device or with one of
//! its parts is found before anything is served from it.
//!
//! `WEFT_BLESS_DEVICE=1 cargo test -p weft-store --test suite device` makes the image of the present format
//! again: only together with a new format version and an entry in docs/format/device.md.

use crate::model;

use model::*;
use std::fmt::Write as _;
use std::rc::Rc;
use weft_rt::sim::{Sim, SimDisk};
use weft_rt::{Buf, Drive};
use weft_store::*;
use weft_types::*;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 6 * MIB;
const FABRIC: FabricId = FabricId(0xfa);
const DEVICE: DeviceId = DeviceId(0xde);
const OTHER: DriveId = DriveId(0xd2);
const OBJECT: ObjectId = ObjectId::of_volume(VolumeId(7), 3);

fn in_parts() -> DeviceFormat {
    DeviceFormat {
        fabric: FABRIC,
        device: DEVICE,
        drives: vec![DRIVE, OTHER],
        force: false,
        allow_tiny: true,
    }
}

/// A device of two parts of 2 MiB.
async fn formatted(name: &str) -> SimDisk {
    let disk = SimDisk::new(name, SIZE);
    Device::format(&disk.open().unwrap(), &in_parts()).await.unwrap();
    disk
}

async fn read(disk: &SimDisk) -> Result<Device, StoreError> {
    Device::read(disk.open().unwrap()).await
}

async fn open_part(device: &Device, index: usize) -> Result<Rc<Store>, StoreError> {
    let label = device.label().expect("it has parts").clone();
    let drive = label.part(device.drive(), index)?;
    let options = OpenOptions { fabric: Some(FABRIC), part_of: Some((label, index)), ..Default::default() };
    Store::open(drive, options).await.map(|(store, _)| store)
}

/// The device's label with other bytes in it, and a checksum that fits, in both places.
fn forge(disk: &SimDisk, change: impl FnOnce(&mut Vec<u8>)) {
    let mut block = disk.peek(0, BLOCK_SIZE);
    change(&mut block);
    let crc = weft_wire::crc32c(&block[..BLOCK_SIZE - 4]);
    block[BLOCK_SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
    for at in [0, SIZE - BLOCK_SIZE as u64] {
        disk.poke(at, &block);
    }
}

#[test]
fn the_parts_of_a_device_are_drives_that_know_nothing_of_each_other() {
    Sim::new(1).block_on(async move {
        let disk = formatted("d").await;
        let device = read(&disk).await.unwrap();
        let label = device.label().unwrap();
        assert_eq!((label.fabric, label.device, label.size_bytes), (FABRIC, DEVICE, SIZE));
        let drives: Vec<DriveId> = label.parts.iter().map(|part| part.drive).collect();
        assert_eq!((drives, device.damaged_labels()), (vec![DRIVE, OTHER], 0));
        let stores = [open_part(&device, 0).await.unwrap(), open_part(&device, 1).await.unwrap()];
        for (store, seed) in stores.iter().zip([1, 2]) {
            assert_eq!(store.device(), Some(DEVICE));
            store.set_group(entry(1, 1, Role::InSync, 1)).await.unwrap();
            store.write(client(OBJECT, BlockRange::new(0, 40), 5, fill_at(seed, 0, 40))).await.unwrap();
        }
        let no = open_part(&device, 2).await.map(|_| ()).unwrap_err();
        assert_eq!(no.to_string(), "there is no part 2: the device has 2, counted from 0");
        // As after a crash: each replays its own log.
        let copy = disk.copy("after");
        let device = read(&copy).await.unwrap();
        for (index, seed) in [(0, 1), (1, 2)] {
            let store = open_part(&device, index).await.unwrap();
            let found = store.read(GroupId(1), OBJECT, BlockRange::one(7)).await.unwrap();
            let ExtentData::Data { buf, .. } = &found[0].data else { panic!("{found:?}") };
            assert_eq!(buf[..], pattern(seed, 7)[..]);
            clean(&store, 0).await;
            store.close().await.unwrap();
        }
    });
}

#[test]
fn one_good_copy_of_the_label_serves_and_the_other_is_repaired() {
    for (at, len) in [(0, 9), (100, 1), (SIZE - 4096, 4096), (SIZE - 4, 4)] {
        Sim::new(1).block_on(async move {
            let disk = formatted("d").await;
            let before = (disk.peek(0, BLOCK_SIZE), disk.peek(SIZE - 4096, BLOCK_SIZE));
            disk.poke(at, &vec![0x5a; len]);
            let mut device = read(&disk).await.unwrap();
            assert_eq!((device.damaged_labels(), device.label().unwrap().device), (1, DEVICE));
            open_part(&device, 1).await.unwrap();
            device.repair_label().await.unwrap();
            drop(device);
            assert_eq!((disk.peek(0, BLOCK_SIZE), disk.peek(SIZE - 4096, BLOCK_SIZE)), before);
            assert_eq!(read(&disk).await.unwrap().damaged_labels(), 0);
        });
    }
    // A block that cannot be read is written anew as well.
    Sim::new(1).block_on(async move {
        let disk = formatted("d").await;
        disk.set_faults(|f| f.unreadable.push(0..4096));
        let mut device = read(&disk).await.unwrap();
        device.repair_label().await.unwrap();
        drop(device);
        assert_eq!(read(&disk).await.unwrap().damaged_labels(), 0);
    });
}

#[test]
fn a_label_that_cannot_be_used_says_why_and_nothing_is_written() {
    type Change = fn(&mut Vec<u8>);
    let cases: [(Change, &str); 6] = [
        (|label| label[8] = 2, "has format 2, this program knows formats up to 1: use a newer Weft"),
        (|label| label[64] = 4, "has uses 0x4, which this program does not know: use a newer Weft"),
        // The first extent of the second part: start and length.
        (|label| label[124..132].copy_from_slice(&MIB.to_le_bytes()), "overlap what lies before"),
        (|label| label[132..140].copy_from_slice(&SIZE.to_le_bytes()), "leave the device"),
        (|label| label[10] = 0, "lists 0 parts"),
        (|label| label.copy_within(72..88, 106), "two parts are drive"),
    ];
    for (change, why) in cases {
        Sim::new(1).block_on(async move {
            let disk = formatted("d").await;
            forge(&disk, change);
            let before = disk.peek(0, SIZE as usize);
            let refused = read(&disk).await.unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
            let anew = Device::format(&disk.open().unwrap(), &in_parts()).await.unwrap_err();
            assert!(matches!(anew, StoreError::ForeignData { .. }), "{anew}");
            assert_eq!(disk.peek(0, SIZE as usize), before);
        });
    }
    Sim::new(1).block_on(async move {
        let disk = formatted("d").await;
        disk.flip(50, 1);
        disk.flip(SIZE - 4096 + 50, 1);
        let refused = read(&disk).await.unwrap_err();
        assert_eq!(refused.to_string(), "the device's label is damaged: its checksum is wrong");
    });
}

#[test]
fn a_device_of_another_size_is_refused_or_used_as_far_as_it_was() {
    Sim::new(1).block_on(async move {
        let disk = formatted("d").await;
        for (size, is_whole) in [(SIZE - 4096, false), (MIB, false), (SIZE + MIB, true)] {
            let other = SimDisk::new("other", size);
            other.poke(0, &disk.peek(0, SIZE.min(size) as usize));
            match read(&other).await {
                Ok(device) if is_whole => {
                    assert_eq!((device.label().unwrap().size_bytes, device.damaged_labels()), (SIZE, 0));
                    open_part(&device, 1).await.unwrap();
                }
                Err(StoreError::Truncated { found_bytes, expected_bytes }) if !is_whole => {
                    assert_eq!((found_bytes, expected_bytes), (size, SIZE));
                }
                other => panic!("{size}: {other:?}"),
            }
        }
    });
}

#[test]
fn a_part_that_is_not_the_listed_one_is_left_out_and_the_others_serve() {
    let part = |index: u64| MIB + index * 2 * MIB;
    Sim::new(1).block_on(async move {
        let disk = formatted("d").await;
        // The first part's bytes have come to the place of the second one.
        disk.poke(part(1), &disk.peek(part(0), 2 * MIB as usize));
        let device = read(&disk).await.unwrap();
        let wrong = open_part(&device, 1).await.map(|_| ()).unwrap_err();
        let expected =
            format!("part 1 is not what the device's label lists: found drive {DRIVE}, expected {OTHER}");
        assert_eq!(wrong.to_string(), expected);
        open_part(&device, 0).await.unwrap();
    });
    let foreign = FormatOptions { allow_tiny: true, ..FormatOptions::new(FabricId(9), OTHER) };
    let listed = FormatOptions { fabric: FABRIC, ..foreign.clone() };
    for (options, size, what) in [(foreign, 2 * MIB, "found fabric"), (listed, 2 * MIB - 4096, "found size")]
    {
        Sim::new(1).block_on(async move {
            let (disk, alone) = (formatted("d").await, SimDisk::new("alone", size));
            Store::format(&alone.open().unwrap(), options).await.unwrap();
            disk.poke(part(1), &alone.peek(0, size as usize));
            let device = read(&disk).await.unwrap();
            let wrong = open_part(&device, 1).await.map(|_| ()).unwrap_err();
            assert!(wrong.to_string().contains(what), "{wrong}");
            open_part(&device, 0).await.unwrap();
        });
    }
}

#[test]
fn a_part_that_is_damaged_leaves_the_others_alone() {
    Sim::new(1).block_on(async move {
        let disk = formatted("d").await;
        for at in [MIB, 3 * MIB - 4096] {
            disk.poke(at, &[0; BLOCK_SIZE]);
        }
        let device = read(&disk).await.unwrap();
        assert!(open_part(&device, 0).await.is_err());
        let second = open_part(&device, 1).await.unwrap();
        clean(&second, 0).await;
    });
}

#[test]
fn formatting_refuses_what_is_there_and_changes_all_of_the_device_at_once() {
    Sim::new(1).block_on(async move {
        let disk = formatted("d").await;
        let open = || disk.open().unwrap();
        let again = Device::format(&open(), &in_parts()).await.unwrap_err();
        let expected = format!(
            "the device is formatted for Weft already, as device {DEVICE} of fabric {FABRIC} in 2 parts"
        );
        assert_eq!(again.to_string(), expected);
        let one = FormatOptions { allow_tiny: true, ..FormatOptions::new(FABRIC, DriveId(7)) };
        let as_one = Store::format(&open(), one.clone()).await.unwrap_err();
        assert_eq!(as_one.to_string(), expected);
        // What knows of drives alone takes it for something else.
        let opened = Store::open(open(), OpenOptions::default()).await.map(|_| ()).unwrap_err();
        assert!(opened.to_string().contains("a Weft device of several parts"), "{opened}");

        Store::format(&open(), FormatOptions { force: true, ..one }).await.unwrap();
        assert!(read(&disk).await.unwrap().label().is_none(), "it is one drive now");
        let drive = Device::format(&open(), &in_parts()).await.unwrap_err();
        assert!(matches!(drive, StoreError::FormattedAlready { drive: DriveId(7), .. }), "{drive}");
        Device::format(&open(), &DeviceFormat { force: true, ..in_parts() }).await.unwrap();
        let device = read(&disk).await.unwrap();
        open_part(&device, 0).await.unwrap();
        open_part(&device, 1).await.unwrap();
    });
}

#[test]
fn a_format_that_is_cut_off_leaves_a_device_without_any_part() {
    // Each cut eight times: what is kept, lost and torn differs.
    for seed in 0.. {
        let operations = seed / 8;
        let is_done = Sim::new(seed).block_on(async move {
            let disk = SimDisk::new("d", SIZE);
            let drive = disk.open().unwrap();
            disk.cut_power_after(operations);
            let options = in_parts();
            let formatting = Device::format(&drive, &options);
            let done = weft_rt::sync::race(formatting, disk.cut()).await;
            if let weft_rt::sync::Either::Left(done) = done {
                done.unwrap();
                return true;
            }
            // What was not flushed is kept, lost or torn.
            disk.pull();
            disk.put_back();
            disk.restore_power();
            drop(drive);
            let copy = disk.copy("after");
            match read(&copy).await {
                Ok(device) if device.label().is_some() => {
                    for index in 0..2 {
                        open_part(&device, index).await.unwrap();
                    }
                }
                // The label was torn while it was written.
                Ok(_) | Err(StoreError::DeviceLabelDamaged { .. }) => {}
                Err(error) => panic!("{operations}: {error}"),
            }
            let anew = DeviceFormat { force: true, ..in_parts() };
            Device::format(&disk.open().unwrap(), &anew).await.unwrap();
            false
        });
        if is_done {
            assert!(operations > 10, "{operations}");
            return;
        }
    }
}

#[test]
fn parts_that_are_too_small_or_too_many_are_refused() {
    Sim::new(1).block_on(async move {
        let disk = SimDisk::new("d", SIZE);
        let open = || disk.open().unwrap();
        let large = DeviceFormat { allow_tiny: false, ..in_parts() };
        let small = Device::format(&open(), &large).await.unwrap_err();
        assert!(
            matches!(small, StoreError::TooSmall { found_bytes, .. } if found_bytes == 2 * MIB),
            "{small}"
        );
        for count in [0, 9] {
            let drives = (0..count).map(DriveId).collect();
            let refused = Device::format(&open(), &DeviceFormat { drives, ..in_parts() }).await.unwrap_err();
            assert!(refused.to_string().contains("a device has 1 to 8 parts"), "{refused}");
        }
        assert!(disk.touched().is_empty());
    });
}

#[test]
fn a_device_that_hangs_is_told_of_and_not_waited_for() {
    Sim::new(1).block_on(async move {
        let disk = formatted("d").await;
        disk.set_faults(|f| f.stuck = true);
        let hangs = read(&disk).await.unwrap_err();
        assert!(matches!(hangs, StoreError::Hangs { .. }), "{hangs}");
    });
}

/// The device as text: lines of 32 bytes that are not zero, with their offset and how often they repeat.
fn dump(disk: &SimDisk) -> String {
    let all = disk.peek(0, SIZE as usize);
    let mut out = String::new();
    let mut at = 0;
    while at < all.len() {
        let line = &all[at..at + 32];
        let times = all[at..].chunks(32).take_while(|next| next == &line).count();
        if line.iter().any(|b| *b != 0) {
            write!(out, "{at:06x} {times} ").unwrap();
            line.iter().for_each(|b| write!(out, "{b:02x}").unwrap());
            out.push('\n');
        }
        at += times * 32;
    }
    out
}

/// The image without the labels of the parts, which say when they were formatted: after other reads and
/// writes, so that the time is that of the run. The device's label says when it was begun.
fn without_part_labels(text: &str) -> String {
    let ends = [0, 1].map(|index| [MIB + 2 * index * MIB, MIB + 2 * (index + 1) * MIB - 4096]);
    let is_label = |line: &&str| {
        let at = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        ends.as_flattened().contains(&(at - at % 4096))
    };
    text.lines().filter(|line| !is_label(line)).map(|line| format!("{line}\n")).collect()
}

fn load(disk: &SimDisk, text: &str) {
    for line in text.lines() {
        let [at, times, hex] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..32).map(byte).collect();
        disk.poke(u64::from_str_radix(at, 16).unwrap(), &bytes.repeat(times.parse().unwrap()));
    }
}

/// The image of a device that each format's program has made: two parts, the second of two extents, with a
/// block of data in each.
async fn make() -> SimDisk {
    let disk = formatted("made").await;
    let device = read(&disk).await.unwrap();
    for index in 0..2 {
        let store = open_part(&device, index).await.unwrap();
        store.set_group(entry(1, 1, Role::InSync, 1)).await.unwrap();
        let data = Buf::from(vec![0x11 + index as u8; BLOCK_SIZE]);
        let payload = Payload::Data { crcs: vec![weft_wire::crc32c(&data)], data };
        store.write(client(OBJECT, BlockRange::one(9), 5, payload)).await.unwrap();
        store.close().await.unwrap();
    }
    disk
}

/// The second part of a device, moved so that it lies in two extents, the second one in front.
fn in_two_extents(disk: &SimDisk) {
    let (start, half) = (3 * MIB, MIB);
    let (first, second) = (disk.peek(start, half as usize), disk.peek(start + half, half as usize));
    disk.poke(start, &second);
    disk.poke(start + half, &first);
    forge(disk, |label| {
        label[122] = 2;
        let fields = [start + half, half, start, half];
        let bytes: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
        label[124..156].copy_from_slice(&bytes);
    });
}

#[test]
fn the_image_of_every_format_opens_and_todays_bytes_are_the_same() {
    let file = format!("{}/tests/golden/device-v1.txt", env!("CARGO_MANIFEST_DIR"));
    let made = Sim::new(1).block_on(async move { dump(&make().await) });
    if std::env::var_os("WEFT_BLESS_DEVICE").is_some() {
        std::fs::write(&file, &made).unwrap();
    }
    let golden = std::fs::read_to_string(&file).unwrap();
    for is_scattered in [false, true] {
        let golden = golden.clone();
        Sim::new(2).block_on(async move {
            let disk = SimDisk::new("golden", SIZE);
            load(&disk, &golden);
            if is_scattered {
                in_two_extents(&disk);
            }
            let device = read(&disk).await.unwrap();
            assert_eq!((device.label().unwrap().format, device.damaged_labels()), (1, 0));
            assert_eq!(device.label().unwrap().parts[1].extents.len(), 1 + usize::from(is_scattered));
            for index in 0..2 {
                let store = open_part(&device, index).await.unwrap();
                let found = store.read(GroupId(1), OBJECT, BlockRange::one(9)).await.unwrap();
                let ExtentData::Data { buf, .. } = &found[0].data else { panic!("{found:?}") };
                assert!(buf.iter().all(|byte| *byte == 0x11 + index as u8));
                store.write(client(OBJECT, BlockRange::new(0, 128), 6, fill_at(3, 0, 128))).await.unwrap();
                clean(&store, 0).await;
                store.close().await.unwrap();
            }
        });
    }
    let (made, golden) = (without_part_labels(&made), without_part_labels(&golden));
    assert!(made.len() > 1000 && made == golden, "the format has changed: see the top of this file\n{made}");
}

#[test]
fn a_part_is_byte_for_byte_what_a_drive_of_its_size_is() {
    Sim::new(1).block_on(async move {
        let (device, alone) = (formatted("d").await, SimDisk::new("alone", 2 * MIB));
        let options = FormatOptions { allow_tiny: true, ..FormatOptions::new(FABRIC, OTHER) };
        let drive: Drive = alone.open().unwrap();
        Store::format(&drive, options).await.unwrap();
        // The labels say when; everything else is the same.
        let label = BLOCK_SIZE;
        let (part, whole) = (device.peek(3 * MIB, 2 * MIB as usize), alone.peek(0, 2 * MIB as usize));
        assert!(part[label..part.len() - label] == whole[label..whole.len() - label]);
        assert_eq!(part[..56], whole[..56]);
    });
}
