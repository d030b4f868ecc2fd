//! Limits that the system sets for a device's memory, beside what the device has: of CUDA's Multi-Process Service for this
//! process, and of Linux and NVIDIA's driver for the processes of a control group. They are read without rights, and count as the
//! device's size: where nothing says which device is meant, or the system has none, there is no limit.
//!
//! - `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`, as in `0=2G,1=512MB`, says for each device, by its number or its UUID, how much
//!   memory a process may have. The limits that the service itself was started with are told to nobody.
//! - Of Linux's control groups, version 2, the files `dmem.max` and `dmem.current` of the process's group, and of those
//!   above it, have a line for each region of a device's memory, such as `drm/0000:03:00.0/vram0 8514437120`, or `max` for no
//!   limit. A device is found by its PCI address.
//! - The driver itself has a limit for a control group, as NVIDIA's from R615 on, where the kernel has no `dmem` or the
//!   limit was set by NVML. The process's own group is asked about: for one without a limit the driver answers with that of
//!   the nearest group above it. Where the driver's limits nest, they are the kernel's, which is read at each level.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::limits::reserved_on;
use crate::error::Result;
use crate::ids::Device;
use crate::runtime::{GroupLimit, Kind, device_info, get};

/// A limit of a device's memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) struct SystemLimit {
    pub(in crate::memory) bytes: u64,
    pub(in crate::memory) left: u64,
    /// Whether it is for this process alone, so that it does not help that others give back.
    pub(in crate::memory) is_own: bool,
}

/// How drivers and the system name a device.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct DeviceNames {
    /// As `nvidia-smi -L` writes it.
    uuid: Option<String>,
    /// As `domain:bus:device.function`.
    pci: Option<String>,
}

/// Returns the names of a device; asked once. None of them if the driver refuses.
fn names_of(device: Device) -> DeviceNames {
    static ALL: OnceLock<Vec<DeviceNames>> = OnceLock::new();
    let read = || -> Result<Vec<DeviceNames>> {
        let all = (0..get()?.device_count()).map(Device::from_ordinal).map(|device| {
            let info = device_info(device)?;
            Ok(DeviceNames { uuid: info.uuid, pci: info.pci_bus_id })
        });
        all.collect()
    };
    // No lock is held while the driver is asked.
    let all = match ALL.get() {
        Some(all) => all,
        None => match read() {
            Ok(read) => ALL.get_or_init(|| read),
            Err(_) => return DeviceNames::default(),
        },
    };
    all.get(device.ordinal()).cloned().unwrap_or_default()
}

/// Returns the limits of a device's memory that the system has for this process.
pub(in crate::memory) fn system_limits(device: Device) -> Vec<SystemLimit> {
    // AMD has no such service.
    let of_mps = get().is_ok_and(|runtime| runtime.kind() != Kind::Hip).then(|| mps_limit(device)).flatten();
    let of_mps =
        of_mps.map(|bytes| SystemLimit { bytes, left: bytes.saturating_sub(reserved_on(device)), is_own: true });
    let group = OwnGroup::find();
    let of_system = group.as_ref().and_then(|group| group.limit(device));
    let of_driver = group.as_ref().and_then(|group| get().ok()?.group_limit(device, &group.folder()));
    let of_driver = of_driver.map(|GroupLimit { bytes, used }| SystemLimit {
        bytes,
        left: bytes.saturating_sub(used),
        is_own: false,
    });
    of_mps.into_iter().chain(of_system).chain(of_driver).collect()
}

/// Returns the smallest limit; none if the system has none.
pub(in crate::memory) fn system_limit(device: Device) -> Option<u64> {
    system_limits(device).iter().map(|limit| limit.bytes).min()
}

/// Returns the limit that the environment has for a device. A value that is none is the driver's to refuse.
fn mps_limit(device: Device) -> Option<u64> {
    static TEXT: OnceLock<Option<String>> = OnceLock::new();
    let text = TEXT.get_or_init(|| std::env::var(MPS_LIMIT).ok()).as_deref()?;
    mps_limit_in(text, device.ordinal(), || names_of(device).uuid)
}

fn mps_limit_in(text: &str, ordinal: usize, uuid: impl Fn() -> Option<String>) -> Option<u64> {
    let is_meant = |name: &str| match name.parse::<usize>() {
        Ok(number) => number == ordinal,
        // As where devices are made visible, its beginning is enough.
        Err(_) => uuid().is_some_and(|uuid| {
            name.len() > "GPU-".len() && uuid.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name))
        }),
    };
    let entries = text.split(',').filter_map(|entry| entry.split_once('='));
    entries.filter(|(name, _)| is_meant(name.trim())).filter_map(|(_, size)| size_of_text(size.trim())).min()
}

/// Reads a size such as `2G`, `512MB` or a number of bytes.
fn size_of_text(size: &str) -> Option<u64> {
    let digits = size.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = size.split_at(digits);
    let shift = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" => 10,
        "M" | "MB" => 20,
        "G" | "GB" => 30,
        "T" | "TB" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// CUDA's own, by which the Multi-Process Service limits a process's memory.
const MPS_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
/// Where the groups are, as the system mounts them.
const GROUPS: &str = "/sys/fs/cgroup";
/// Which of them the process is in.
const OWN: &str = "/proc/self/cgroup";

/// The control group of this process, by its path below the root of all groups.
#[derive(Debug)]
struct OwnGroup(PathBuf);

impl OwnGroup {
    /// Returns it; none if the process is in none of version 2.
    fn find() -> Option<Self> {
        Self::named_in(&fs::read_to_string(OWN).ok()?)
    }

    fn named_in(own: &str) -> Option<Self> {
        // Of version 2 the number is 0, and there is no controller's name.
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        // A process that was moved out of what its container sees is shown so; the container's own group is at the root.
        let is_outside = own.split('/').any(|part| part == "..");
        Some(Self(PathBuf::from(if is_outside { "" } else { own })))
    }

    /// Returns its directory, without a slash at the end.
    fn folder(&self) -> PathBuf {
        Path::new(GROUPS).join(&self.0).components().collect()
    }

    /// Returns what is most limited of the device's memory, for the group or one above it.
    fn limit(&self, device: Device) -> Option<SystemLimit> {
        group_limit_in(Path::new(GROUPS), self, || names_of(device).pci)
    }
}

fn group_limit_in(groups: &Path, own: &OwnGroup, pci: impl Fn() -> Option<String>) -> Option<SystemLimit> {
    let limits = own.0.ancestors().filter_map(|group| limit_of_group(&groups.join(group), &pci));
    limits.reduce(|one, other| SystemLimit {
        bytes: one.bytes.min(other.bytes),
        left: one.left.min(other.left),
        is_own: false,
    })
}

/// Returns the limit of one group; none if it has none for the device.
fn limit_of_group(group: &Path, pci: impl Fn() -> Option<String>) -> Option<SystemLimit> {
    let most = fs::read_to_string(group.join("dmem.max")).ok().filter(|most| !most.trim().is_empty())?;
    let pci = pci()?;
    let bytes = bytes_in(&most, &pci)?;
    let used = fs::read_to_string(group.join("dmem.current")).ok().and_then(|used| bytes_in(&used, &pci)).unwrap_or(0);
    Some(SystemLimit { bytes, left: bytes.saturating_sub(used), is_own: false })
}

/// Returns the number in the line of the device's own memory; none where it is `max`.
fn bytes_in(lines: &str, pci: &str) -> Option<u64> {
    let is_meant = |region: &str| {
        let is_memory = region.rsplit('/').next().is_some_and(|part| part.starts_with("vram"));
        is_memory && region.split('/').any(|part| part.eq_ignore_ascii_case(pci))
    };
    let numbers = lines.lines().filter_map(|line| line.split_once(' ')).filter(|(region, _)| is_meant(region));
    numbers.filter_map(|(_, number)| number.trim().parse::<u64>().ok()).reduce(u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PCI: &str = "0000:3B:00.0";

    #[test]
    fn a_line_is_found_by_the_address() {
        let lines = "drm/0000:03:00.0/vram0 7\ndrm/0000:3b:00.0/vram0 99\ndrm/0000:3b:00.0/stolen 5\nrubbish\n";
        assert_eq!(bytes_in(lines, PCI), Some(99));
        assert_eq!(bytes_in("drm/0000:3b:00.0/vram0 max\n", PCI), None);
        assert_eq!(bytes_in("drm/0000:3b:00.0/vram0 1\ndrm/0000:3b:00.0/vram1 2\n", PCI), Some(3));
        assert_eq!(bytes_in("", PCI), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such files")]
    fn the_groups_above_count_as_well() -> Result<(), std::io::Error> {
        let root = std::env::temp_dir().join(format!("gpupool-groups-{}", std::process::id()));
        let pci = || Some(PCI.to_owned());
        let write = |group: &str, most: &str, used: u64| {
            let group = root.join(group);
            fs::create_dir_all(&group)?;
            fs::write(group.join("dmem.max"), format!("drm/0000:3b:00.0/vram0 {most}\n"))?;
            fs::write(group.join("dmem.current"), format!("drm/0000:3b:00.0/vram0 {used}\n"))
        };
        let limit_of = |own: &str| group_limit_in(&root, &OwnGroup::named_in(own)?, pci);
        let limit = |own: &str| limit_of(own).map(|limit| (limit.bytes, limit.left, limit.is_own));
        write("pods/one", "100", 30)?;
        assert_eq!(limit("0::/pods/one\n"), Some((100, 70, false)));
        write("pods", "150", 120)?;
        assert_eq!(limit("1:memory:/else\n0::/pods/one\n"), Some((100, 30, false)));
        write("pods/one", "max", 30)?;
        assert_eq!(limit("0::/pods/one\n"), Some((150, 30, false)));
        assert_eq!(limit("0::/another\n"), None);
        // A container's own group, and none of version 2.
        write("", "80", 90)?;
        assert_eq!(limit("0::/\n"), Some((80, 0, false)));
        assert_eq!(limit("0::/../pods\n"), Some((80, 0, false)));
        assert_eq!(limit("1:memory:/pods/one\n"), None);
        let folder = |own: &str| OwnGroup::named_in(own).map(|group| group.folder().into_os_string());
        assert_eq!(folder("0::/pods/one\n"), Some("/sys/fs/cgroup/pods/one".into()));
        assert_eq!(folder("0::/\n"), Some("/sys/fs/cgroup".into()));
        assert_eq!(folder("0::/../pods\n"), Some("/sys/fs/cgroup".into()));
        assert_eq!(folder("1:memory:/pods/one\n"), None);
        // A device that nothing is known of.
        assert_eq!(group_limit_in(&root, &OwnGroup(PathBuf::new()), || None), None);
        fs::remove_dir_all(&root)
    }

    const UUID: &str = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";

    #[test]
    fn a_device_is_named_by_its_number_or_its_uuid() {
        let read = |text: &str, ordinal| mps_limit_in(text, ordinal, || Some(UUID.to_owned()));
        assert_eq!(read("0=2G,1=512MB", 0), Some(2 << 30));
        assert_eq!(read("0=2G, 1=512MB", 1), Some(512 << 20));
        assert_eq!(read("0=2G,1=512MB", 2), None);
        assert_eq!(read("GPU-8932F937=3G", 7), Some(3 << 30));
        assert_eq!(read(&format!("{UUID}=3g"), 7), Some(3 << 30));
        assert_eq!(read("GPU-9=3G,GPU-=1G,=2G", 7), None);
        assert_eq!(mps_limit_in("GPU-8932=3G", 0, || None), None);
        // Named twice, the smaller one.
        assert_eq!(read("0=2G,GPU-8932=1G", 0), Some(1 << 30));
    }

    #[test]
    fn what_is_no_size_is_no_limit() {
        let read = |text: &str| mps_limit_in(text, 0, || None);
        assert_eq!(["0=5", "0=5B", "0=6 kb", "0=1T"].map(read), [Some(5), Some(5), Some(6 << 10), Some(1 << 40)]);
        for wrong in ["", "0", "0=", "0=G", "0=-1G", "0=1.5G", "0=2X", "0=99999999999999999999", "0=99999999999G", "1G"]
        {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
