//! Simulated events of other processes: words in memory that both processes have mapped. Each process keeps its words
//! in one memfd, so that a thousand events take one descriptor. A word counts how often its event was recorded, and how
//! many of these are done. When a process ends, all its words count as done, as a GPU ends the work with the process.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Pid, test_kill_process};

use crate::sync::lock;

const BYTES: usize = 1 << 20;
const WORD_BYTES: usize = size_of::<WordCounts>();
/// The first place has the id of the words' process.
const WORDS: u64 = (BYTES / WORD_BYTES) as u64 - 1;

#[repr(C)]
struct WordCounts {
    recorded: AtomicU64,
    done: AtomicU64,
}

/// A word of this process or of another one. Its memory stays mapped as long as the process lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Word {
    /// Of the words of its process.
    base: usize,
    number: u64,
}

/// This process's own words.
#[derive(Debug)]
struct OwnWords {
    file: OwnedFd,
    base: usize,
    next: u64,
    free: Vec<u64>,
}

static OWN: Mutex<Option<OwnWords>> = Mutex::new(None);
/// The words of other processes, by device and number of the file.
static OTHERS: Mutex<Option<HashMap<(u64, u64), usize>>> = Mutex::new(None);

fn map(file: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: the system chooses the addresses, and nothing here relies on what others write there.
    let mapped =
        unsafe { mmap(std::ptr::null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0) };
    Ok(mapped?.expose_provenance())
}

fn at(base: usize, number: u64) -> &'static WordCounts {
    let place: *const WordCounts = std::ptr::with_exposed_provenance(base + number as usize * WORD_BYTES);
    // SAFETY: the words of a process are mapped as long as this one lives, and `number` is among them.
    unsafe { &*place }
}

impl Word {
    pub(super) fn new() -> io::Result<Self> {
        let mut own = lock(&OWN);
        if own.is_none() {
            let file = memfd_create(c"gpupool-events", MemfdFlags::CLOEXEC);
            let file = file?;
            ftruncate(&file, BYTES as u64)?;
            let base = map(file.as_fd())?;
            at(base, 0).recorded.store(std::process::id().into(), Ordering::Release);
            *own = Some(OwnWords { file, base, next: 1, free: Vec::new() });
        }
        let too_many = || io::Error::from(io::ErrorKind::OutOfMemory);
        let own = own.as_mut().ok_or_else(too_many)?;
        let number = match own.free.pop() {
            Some(number) => number,
            None if own.next <= WORDS => {
                own.next += 1;
                own.next - 1
            }
            None => return Err(too_many()),
        };
        Ok(Self { base: own.base, number })
    }

    /// Releases the word for another event of this process. What was recorded is done for others.
    pub(super) fn give_up(self) {
        let counts = at(self.base, self.number);
        counts.done.fetch_max(counts.recorded.load(Ordering::Acquire), Ordering::AcqRel);
        if let Some(own) = lock(&OWN).as_mut() {
            own.free.push(self.number);
        }
    }

    /// Returns what another process needs to find it: its name, and the file.
    pub(super) fn export(self) -> io::Result<([u8; 64], OwnedFd)> {
        let own = lock(&OWN);
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let own = own.as_ref().filter(|own| own.base == self.base).ok_or_else(invalid)?;
        let mut name = [0; 64];
        name[..8].copy_from_slice(&self.number.to_le_bytes());
        let file = own.file.try_clone()?;
        Ok((name, file))
    }

    pub(super) fn import(name: &[u8; 64], file: OwnedFd) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let mut number = [0; 8];
        number.copy_from_slice(&name[..8]);
        let number = u64::from_le_bytes(number);
        let status = fstat(&file)?;
        if !(1..=WORDS).contains(&number) || status.st_size != BYTES as i64 {
            return Err(invalid());
        }
        let mut others = lock(&OTHERS);
        let others = others.get_or_insert_default();
        let key = (status.st_dev, status.st_ino);
        let base = match others.get(&key) {
            Some(&base) => base,
            None => {
                let base = map(File::from(file).as_fd())?;
                others.insert(key, base);
                base
            }
        };
        Ok(Self { base, number })
    }

    /// Notes that the event was recorded, and returns how often that is now.
    pub(super) fn record(self) -> u64 {
        at(self.base, self.number).recorded.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(super) fn recorded(self) -> u64 {
        at(self.base, self.number).recorded.load(Ordering::Acquire)
    }

    pub(super) fn finish(self, until: u64) {
        at(self.base, self.number).done.fetch_max(until, Ordering::AcqRel);
    }

    /// Returns up to which record the work is done: all if its process is gone.
    pub(super) fn done(self) -> u64 {
        let owner = at(self.base, 0).recorded.load(Ordering::Acquire);
        let is_gone = i32::try_from(owner).ok().and_then(Pid::from_raw).is_some_and(|owner| {
            test_kill_process(owner).is_err_and(|error| io::Error::from(error).raw_os_error() == Some(libc::ESRCH))
        });
        if is_gone { u64::MAX } else { at(self.base, self.number).done.load(Ordering::Acquire) }
    }
}
