//! Limits on the memory that a process may lock: of locked memory, of its control group, and of open files.

use std::fs::{self, File};

use rustix::process::{Resource, getrlimit};

use crate::error::Bytes;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ControlGroup {
    pub(super) total: u64,
    pub(super) free: u64,
}

/// Returns the memory of the process's control group as its container sees it, if it has a limit.
pub(super) fn control_group() -> Option<ControlGroup> {
    let number = |file: &str| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let of = |limit: &str, used: &str, stat: &str, idle: &str| {
        // Version 1 writes the largest number of pages if there is no limit.
        let total = number(limit).filter(|&limit| limit < 1 << 60)?;
        let stat = fs::read_to_string(stat).unwrap_or_default();
        // Cached files are dropped when memory is needed.
        let idle = stat.lines().find_map(|line| line.strip_prefix(idle)?.trim().parse::<u64>().ok()).unwrap_or(0);
        let used = number(used).unwrap_or(0).saturating_sub(idle);
        Some(ControlGroup { total, free: total.saturating_sub(used) })
    };
    of("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file ")
        .or_else(|| {
            of(
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                "/sys/fs/cgroup/memory/memory.stat",
                "total_inactive_file ",
            )
        })
}

/// Returns whether this process, or the system, can open no more files, which pinned memory needs.
fn has_no_file_left() -> bool {
    File::open("/dev/null").is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)))
}

/// Returns what limits the memory that this process can lock, and how to raise it; none if only the machine's memory
/// does.
pub(crate) fn locking_limits() -> Option<String> {
    if has_no_file_left() {
        return Some("this process can open no more files: close some, or raise the limit with `ulimit -n`".to_owned());
    }
    let locked = getrlimit(Resource::Memlock).current.map(|bytes| {
        format!(
            "this process may lock {} of memory (RLIMIT_MEMLOCK is {bytes} bytes): raise it with `ulimit -l unlimited`, in \
             /etc/security/limits.conf, or for a container with `docker run --ulimit memlock=-1`",
            Bytes(bytes)
        )
    });
    let group = control_group().map(|group| {
        format!(
            "its control group may have {} of memory: raise it with `docker run --memory`, or in the limits of the pod",
            Bytes(group.total)
        )
    });
    let both: Vec<_> = [locked, group].into_iter().flatten().collect();
    (!both.is_empty()).then(|| both.join("; "))
}
