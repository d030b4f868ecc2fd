//! What limits the memory that a process may lock: the limit of locked memory, and that of its control group.

use std::fs;

use crate::error::Bytes;

/// The memory of a control group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ControlGroup {
    pub(super) total: u64,
    pub(super) free: u64,
}

/// Returns the memory of the process's control group as its container sees it, if it has a limit.
pub(super) fn control_group() -> Option<ControlGroup> {
    let number = |file: &str| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let of = |limit: &str, used: &str, stat: &str, idle: &str| {
        // Version 1 writes the largest number of pages where there is no limit.
        let total = number(limit).filter(|&limit| limit < 1 << 60)?;
        let stat = fs::read_to_string(stat).unwrap_or_default();
        // What was read from files goes where memory is wanted.
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

/// Returns the bytes that this process may lock; none where there is no limit.
fn locked_memory() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for a limit.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (status == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Returns what limits the memory that this process can lock, and how to raise it; none where nothing does but the
/// machine's own memory.
pub(crate) fn locking_limits() -> Option<String> {
    let locked = locked_memory().map(|bytes| {
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
