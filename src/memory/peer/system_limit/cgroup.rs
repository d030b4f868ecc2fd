//! Linux's control groups, version 2, and their own limit: the files `dmem.max` and `dmem.current` of the process's group,
//! and of those above it, have a line for each region of a device's memory, such as
//! `drm/0000:03:00.0/vram0 8514437120`, or `max` for no limit. A device is found by its PCI address.

use std::fs;
use std::path::{Path, PathBuf};

use super::{DeviceNames, SystemLimit};

/// Where the groups are, as the system mounts them.
const GROUPS: &str = "/sys/fs/cgroup";
/// Which of them the process is in.
const OWN: &str = "/proc/self/cgroup";

/// The control group of this process, by its path below the root of all groups.
#[derive(Debug)]
pub(super) struct OwnGroup(PathBuf);

impl OwnGroup {
    /// Returns it; none if the process is in none of version 2.
    pub(super) fn find() -> Option<Self> {
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
    pub(super) fn folder(&self) -> PathBuf {
        Path::new(GROUPS).join(&self.0).components().collect()
    }

    /// Returns what is most limited of the device's memory, for the group or one above it.
    pub(super) fn limit(&self, names: impl Fn() -> DeviceNames) -> Option<SystemLimit> {
        limit_in(Path::new(GROUPS), self, || names().pci)
    }
}

fn limit_in(groups: &Path, own: &OwnGroup, pci: impl Fn() -> Option<String>) -> Option<SystemLimit> {
    let limits = own.0.ancestors().filter_map(|group| limit_of(&groups.join(group), &pci));
    limits.reduce(|one, other| SystemLimit {
        bytes: one.bytes.min(other.bytes),
        left: one.left.min(other.left),
        is_own: false,
    })
}

/// Returns the limit of one group; none if it has none for the device.
fn limit_of(group: &Path, pci: impl Fn() -> Option<String>) -> Option<SystemLimit> {
    let most = fs::read_to_string(group.join("dmem.max")).ok().filter(|most| !most.trim().is_empty())?;
    let pci = pci()?;
    let bytes = bytes_of(&most, &pci)?;
    let used = fs::read_to_string(group.join("dmem.current")).ok().and_then(|used| bytes_of(&used, &pci)).unwrap_or(0);
    Some(SystemLimit { bytes, left: bytes.saturating_sub(used), is_own: false })
}

/// Returns the number in the line of the device's own memory; none where it is `max`.
fn bytes_of(lines: &str, pci: &str) -> Option<u64> {
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
        assert_eq!(bytes_of(lines, PCI), Some(99));
        assert_eq!(bytes_of("drm/0000:3b:00.0/vram0 max\n", PCI), None);
        assert_eq!(bytes_of("drm/0000:3b:00.0/vram0 1\ndrm/0000:3b:00.0/vram1 2\n", PCI), Some(3));
        assert_eq!(bytes_of("", PCI), None);
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
        let limit_of = |own: &str| limit_in(&root, &OwnGroup::named_in(own)?, pci);
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
        assert_eq!(limit_in(&root, &OwnGroup(PathBuf::new()), || None), None);
        fs::remove_dir_all(&root)
    }
}
