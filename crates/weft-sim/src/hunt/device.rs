//! A device of several parts without a fabric: it is formatted, also over what it was before, and loses power
//! on the way; or the bytes of one part come to the place of another. A device that has a label has all of
//! its parts, and a part is the drive that the label lists.

use weft_rt::random_below;
use weft_rt::sim::SimDisk;
use weft_rt::sync::{Either, race};
use weft_store::{Device, DeviceFormat, OpenOptions, Store, StoreError};
use weft_types::{DeviceId, DriveId, FabricId};

const SIZE_BYTES: u64 = 8 << 20;

/// More operations than two formats take.
const OPERATIONS: u64 = 60;

/// How often a device is formatted.
const TURNS: u64 = 6;

fn options(turn: u64) -> DeviceFormat {
    let count = 2 << random_below(2);
    DeviceFormat {
        fabric: FabricId(0xfa),
        device: DeviceId(0xde00 + u128::from(turn)),
        drives: (0..count).map(|part| DriveId(u128::from(turn << 8 | part))).collect(),
        force: true,
        allow_tiny: true,
    }
}

/// Runs it to its end.
///
/// # Errors
/// What is wrong.
pub(super) async fn run() -> Result<(), String> {
    let disk = SimDisk::new("d", SIZE_BYTES);
    for turn in 1..=TURNS {
        let drive = disk.open().expect("nobody has it open");
        disk.cut_power_after(random_below(OPERATIONS));
        let options = options(turn);
        if let Either::Left(done) = race(Device::format(&drive, &options), disk.cut()).await {
            done.map_err(|error| format!("a format fails: {error}"))?;
        }
        // What was not flushed is kept, lost or torn.
        disk.pull();
        disk.put_back();
        disk.restore_power();
        drop(drive);
        verify(&disk.copy("after")).await?;
        move_a_part(&disk.copy("moved")).await?;
    }
    Ok(())
}

/// A device with a label has all of its parts.
async fn verify(disk: &SimDisk) -> Result<(), String> {
    let device = match Device::read(disk.open().expect("a fresh copy")).await {
        Ok(device) => device,
        // A label that was torn while it was written, or wiped.
        Err(StoreError::DeviceLabelDamaged { .. }) => return Ok(()),
        Err(error) => return Err(format!("a format that was cut off: {error}")),
    };
    let Some(label) = device.label() else { return Ok(()) };
    for index in 0..label.parts.len() {
        let opened = open(&device, index).await;
        opened.map_err(|error| format!("a device with a label lacks a part: {error}"))?;
    }
    Ok(())
}

/// The bytes of the first part come to the place of the second one: that is not a drive of the device.
async fn move_a_part(disk: &SimDisk) -> Result<(), String> {
    let Ok(device) = Device::read(disk.open().expect("a fresh copy")).await else { return Ok(()) };
    let Some(label) = device.label() else { return Ok(()) };
    let (from, to) = (label.parts[0].extents[0], label.parts[1].extents[0]);
    disk.poke(to.start, &disk.peek(from.start, from.len as usize));
    match open(&device, 1).await {
        Err(StoreError::WrongPart { .. }) => Ok(()),
        Err(error) => Err(format!("a part in a wrong place: {error}")),
        Ok(drive) => Err(format!("drive {drive} is served from the place of another part")),
    }
}

async fn open(device: &Device, index: usize) -> Result<DriveId, StoreError> {
    let label = device.label().expect("it has parts").clone();
    let drive = label.part(device.drive(), index)?;
    let options = OpenOptions { part_of: Some((label, index)), ..OpenOptions::default() };
    let (store, _) = Store::open(drive, options).await?;
    store.close().await?;
    Ok(store.label().drive)
}
