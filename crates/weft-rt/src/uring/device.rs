//! Which physical device a block device is on, by what the kernel lists of it under `/sys`.
//!
//! It owns the rule by which two block devices count as one: partitions of one disk, namespaces of one NVMe
//! subsystem, and logical volumes that lie on one device. It never opens a device.

use std::fs;
use std::path::{Path, PathBuf};
use weft_types::DeviceId;

/// How many logical devices may lie one on the other: more are taken for a device of their own.
const LAYERS_FOLLOWED: usize = 8;

/// What tells a device from every other one of its machine, best first. A namespace of NVMe has an
/// identity of its own (`wwid`), so the name of its subsystem is in front.
const NAMES: [&str; 5] = ["device/subsysnqn", "wwid", "device/wwid", "serial", "device/serial"];

/// The physical device of the block device that is listed in this folder as `MAJOR:MINOR`; none if it is
/// not listed.
///
/// A device without a name of its own goes by its number, which may be another one after the machine has
/// started again, but is the same for all its partitions.
pub(super) fn device_of(rdev: u64, devices: &Path) -> Option<DeviceId> {
    let number = format!("{}:{}", libc::major(rdev), libc::minor(rdev));
    let listed = fs::canonicalize(devices.join(number)).ok()?;
    Some(DeviceId::of_name(&name_of(&lowest(listed))))
}

/// Whether the disk below the block device that is listed in this folder does not rotate; not if nothing is
/// known of it.
pub(super) fn is_solid_state(rdev: u64, devices: &Path) -> bool {
    let number = format!("{}:{}", libc::major(rdev), libc::minor(rdev));
    let Ok(listed) = fs::canonicalize(devices.join(number)) else { return false };
    fs::read_to_string(lowest(listed).join("queue/rotational")).is_ok_and(|text| text.trim() == "0")
}

/// The NUMA node of the block device that is listed in this folder: that of the nearest device above it which
/// says one. None if nobody does.
pub(super) fn numa_node(rdev: u64, devices: &Path) -> Option<u32> {
    let number = format!("{}:{}", libc::major(rdev), libc::minor(rdev));
    let disk = lowest(fs::canonicalize(devices.join(number)).ok()?);
    let read = |folder: &Path| {
        // The kernel writes -1 where it does not know.
        fs::read_to_string(folder.join("numa_node")).ok()?.trim().parse().ok()
    };
    let controller = fs::canonicalize(disk.join("device")).ok();
    [Some(disk), controller].into_iter().flatten().find_map(|at| at.ancestors().find_map(read))
}

/// The disk below partitions, and below logical devices that lie on one.
fn lowest(mut listed: PathBuf) -> PathBuf {
    for _ in 0..LAYERS_FOLLOWED {
        if let Some(disk) = listed.parent().filter(|_| listed.join("partition").exists()) {
            listed = disk.to_owned();
        }
        match only_one_below(&listed) {
            Some(below) => listed = below,
            None => break,
        }
    }
    listed
}

/// The device that a logical one lies on; none if it is not logical, or lies on several.
fn only_one_below(listed: &Path) -> Option<PathBuf> {
    let mut below = fs::read_dir(listed.join("slaves")).ok()?;
    let first = below.next()?.ok()?;
    below.next().is_none().then(|| fs::canonicalize(first.path()).ok())?
}

fn name_of(disk: &Path) -> String {
    let read = |file: &str| {
        let text = fs::read_to_string(disk.join(file)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| format!("{file} {text}"))
    };
    let number = || format!("number {}", fs::read_to_string(disk.join("dev")).unwrap_or_default().trim());
    NAMES.iter().find_map(|file| read(file)).unwrap_or_else(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A folder like `/sys`, with block devices by number.
    struct Sys(PathBuf);

    impl Sys {
        fn new(name: &str) -> Sys {
            let folder = std::env::temp_dir().join(format!("weft-device-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(folder.join("dev")).expect("a folder");
            Sys(folder)
        }

        /// A device at this path below `block`, with this number and these files.
        fn device(&self, path: &str, minor: u32, files: &[(&str, &str)]) -> PathBuf {
            let device = self.0.join("block").join(path);
            fs::create_dir_all(device.join("device")).expect("a folder");
            for (file, text) in [("dev", &*format!("8:{minor}\n"))].iter().chain(files) {
                fs::write(device.join(file), text).expect("a file");
            }
            symlink(&device, self.0.join("dev").join(format!("8:{minor}"))).expect("a link");
            device
        }

        fn of(&self, minor: u32) -> Option<DeviceId> {
            device_of(libc::makedev(8, minor), &self.0.join("dev"))
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_disk_is_on_the_numa_node_of_the_nearest_device_that_says_one() {
        let sys = Sys::new("numa");
        sys.device("pci/nvme/nvme0n1", 0, &[]);
        sys.device("pci/nvme/nvme0n1/nvme0n1p1", 1, &[("partition", "1\n")]);
        sys.device("virtio/vda", 2, &[("numa_node", "-1\n")]);
        // What several paths lead to is not below its controller, and names it.
        let shared = sys.device("virtual/nvme1n1", 3, &[]);
        fs::remove_dir(shared.join("device")).expect("it is empty");
        symlink(sys.0.join("block/pci/nvme"), shared.join("device")).expect("a link");
        fs::write(sys.0.join("block/pci/numa_node"), "1\n").expect("a file");
        let node = |minor| numa_node(libc::makedev(8, minor), &sys.0.join("dev"));
        assert_eq!([0, 1, 2, 3, 9].map(node), [Some(1), Some(1), None, Some(1), None]);
    }

    #[test]
    fn partitions_and_namespaces_of_a_device_are_on_it() {
        let sys = Sys::new("parts");
        sys.device("sda", 0, &[("device/wwid", "naa.5000c500\n")]);
        sys.device("sda/sda1", 1, &[("partition", "1\n")]);
        sys.device("sda/sda2", 2, &[("partition", "2\n")]);
        assert_eq!((sys.of(1), sys.of(2)), (sys.of(0), sys.of(0)));
        assert_eq!(sys.of(0), Some(DeviceId::of_name("device/wwid naa.5000c500")));
        let nqn = ("device/subsysnqn", "nqn.2019-08.org.example:1\n");
        sys.device("nvme0n1", 10, &[nqn, ("wwid", "eui.01\n")]);
        sys.device("nvme0n2", 11, &[nqn, ("wwid", "eui.02\n")]);
        assert_eq!(sys.of(10), sys.of(11));
        assert_ne!(sys.of(10), sys.of(0));
        // Without a name: by number, the same for partitions.
        sys.device("vda", 20, &[("serial", "\n")]);
        sys.device("vda/vda1", 21, &[("partition", "1\n")]);
        sys.device("vdb", 22, &[]);
        assert_eq!(sys.of(20), sys.of(21));
        assert_ne!(sys.of(20), sys.of(22));
        assert_eq!(sys.of(99), None, "it is not listed");
    }

    #[test]
    fn a_device_rotates_unless_the_kernel_says_that_it_does_not() {
        let sys = Sys::new("rotates");
        for (name, minor, said) in [("sda", 0, Some("1\n")), ("nvme0n1", 1, Some("0\n")), ("vda", 2, None)] {
            let device = sys.device(name, minor, &[]);
            fs::create_dir(device.join("queue")).expect("a folder");
            if let Some(said) = said {
                fs::write(device.join("queue/rotational"), said).expect("a file");
            }
        }
        sys.device("nvme0n1/nvme0n1p1", 3, &[("partition", "1\n")]);
        let solid = |minor| is_solid_state(libc::makedev(8, minor), &sys.0.join("dev"));
        assert_eq!([0, 1, 2, 3, 99].map(solid), [false, true, false, true, false]);
    }

    #[test]
    fn a_logical_volume_on_one_device_is_on_it_and_one_on_two_is_not() {
        let sys = Sys::new("layers");
        sys.device("sda", 0, &[("device/wwid", "naa.1\n")]);
        let part = sys.device("sda/sda1", 1, &[("partition", "1\n")]);
        let other = sys.device("sdb", 2, &[("device/wwid", "naa.2\n")]);
        for (name, minor, below) in [("dm-0", 10, vec![&part]), ("dm-1", 11, vec![&part, &other])] {
            let slaves = sys.device(name, minor, &[]).join("slaves");
            fs::create_dir(&slaves).expect("a folder");
            for (n, device) in below.into_iter().enumerate() {
                symlink(device, slaves.join(n.to_string())).expect("a link");
            }
        }
        assert_eq!(sys.of(10), sys.of(0));
        assert!(sys.of(11) != sys.of(0) && sys.of(11) != sys.of(2));
    }
}
