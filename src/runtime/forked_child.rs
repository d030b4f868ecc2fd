//! For unit tests: a forked child while a lock of its parent is held for ever.

/// Runs the work, which may take no lock, in a forked child, and checks that it ends.
#[track_caller]
pub(super) fn assert_ends_in_forked_child(work: impl FnOnce()) {
    crate::process::watch_forks();
    // SAFETY: the child does only what is tried here, which may take no lock, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: what waits for ever is ended by the alarm.
        unsafe { libc::alarm(20) };
        work();
        // SAFETY: the child ends without what the parent's threads have.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: the child is this process's, and `status` a place for how it ended.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child waited for a lock");
}
