//! Simulated devices that several processes have together, as they have a GPU: with `GPUPOOL_HOST_SHARED=FOLDER` their
//! memory is that of all processes with the same folder. Each process has a file there with the bytes that it uses,
//! which it keeps locked: the system ends the lock with the process, however that ends, and a file without one counts
//! for nothing and is removed. Another lock, which ends so too, is held for the few system calls of each change.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use rustix::fs::{FlockOperation, flock};

use super::memory::system_error;
use crate::environment::text;
use crate::error::{Error, Result};
use crate::sync::lock;

/// The folder of the processes that have their simulated devices together.
pub(super) const SHARED_VARIABLE: &str = "GPUPOOL_HOST_SHARED";
const ALONE: &str = "alone";
const OF_PROCESS: &str = "process-";

/// What this process has in the folder.
#[derive(Debug)]
pub(super) struct SharedDevices {
    folder: PathBuf,
    /// The folder's own number.
    number: u64,
    /// The name of `own`.
    name: String,
    /// The bytes that this process uses of each device. Locked as long as the process lives.
    own: File,
    /// Locked by the process that changes anything, and, since such a lock is the process's, by its thread.
    alone: Mutex<File>,
}

/// No other thread of any of the processes changes anything while this lives.
#[derive(Debug)]
pub(super) struct Alone<'a> {
    of: &'a SharedDevices,
    file: MutexGuard<'a, File>,
}

impl SharedDevices {
    /// Returns what the environment asks for.
    pub(super) fn from_environment() -> Result<Option<Self>> {
        let Some(folder) = text(SHARED_VARIABLE)? else { return Ok(None) };
        Self::new(PathBuf::from(&folder)).map(Some).map_err(|error| {
            Error::invalid_value(format!(
                "{SHARED_VARIABLE}={folder:?} is no folder that this process can use: {error}"
            ))
        })
    }

    fn new(folder: PathBuf) -> io::Result<Self> {
        let file = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(folder.join(name))
        };
        let alone = file(ALONE)?;
        let name = format!("{OF_PROCESS}{}", std::process::id());
        flock(&alone, FlockOperation::LockExclusive)?;
        // What a process of the same number has left counts no more.
        let _ = fs::remove_file(folder.join(&name));
        let own = file(&name)?;
        flock(&own, FlockOperation::LockExclusive)?;
        flock(&alone, FlockOperation::Unlock)?;
        let number = fs::metadata(&folder)?.ino();
        Ok(Self { folder, number, name, own, alone: Mutex::new(alone) })
    }

    pub(super) const fn folder_number(&self) -> u64 {
        self.number
    }

    pub(super) fn alone(&self) -> Result<Alone<'_>> {
        let file = lock(&self.alone);
        flock(&*file, FlockOperation::LockExclusive).map_err(|error| system_error("flock", &error.into()))?;
        Ok(Alone { of: self, file })
    }
}

impl Alone<'_> {
    /// Returns how many bytes of a device the other living processes use.
    pub(super) fn used_by_others(&self, device: usize) -> Result<u64> {
        self.sum(device).map_err(|error| system_error("read", &error))
    }

    fn sum(&self, device: usize) -> io::Result<u64> {
        let mut sum = 0;
        for entry in fs::read_dir(&self.of.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_other = name.to_str().is_some_and(|name| name.starts_with(OF_PROCESS) && *name != *self.of.name);
            let Some(file) = is_other.then(|| File::open(entry.path()).ok()).flatten() else { continue };
            if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
                fs::remove_file(entry.path())?;
                continue;
            }
            let mut used = [0; 8];
            // A process that has used nothing has written nothing.
            if file.read_exact_at(&mut used, place(device)).is_ok() {
                sum += u64::from_le_bytes(used);
            }
        }
        Ok(sum)
    }

    /// Tells the others how many bytes this process uses.
    pub(super) fn publish(&self, device: usize, used: u64) -> Result<()> {
        let written = self.of.own.write_all_at(&used.to_le_bytes(), place(device));
        written.map_err(|error| system_error("write", &error))
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // It ends with the process at the latest.
        let _ = flock(&*self.file, FlockOperation::Unlock);
    }
}

const fn place(device: usize) -> u64 {
    device as u64 * 8
}
