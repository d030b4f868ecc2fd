//! The queue of the `log` crate's records for Python's `logging`.
//!
//! A record may be made anywhere: in a thread that runs no Python, in a call of PyTorch's that holds PyTorch's locks,
//! with the GIL or without. To ask for the GIL there could wait for a thread that waits for those locks. So a record is
//! queued, without waiting or running Python, and `gpupool._logging` takes it out in a thread of its own. A program that
//! wants warnings alone, as any does by default, gets that thread with the first of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::SystemTime;

use log::{LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;

use crate::observe::target;
use crate::python::ffi::begin_log_soon;
use crate::sync::ThisThread;
use crate::sync::lock;

/// Logger, level as `logging` numbers it, file, line, message, seconds since 1970, thread as `gettid` numbers it.
type LogRecord = (String, u8, &'static str, u32, String, f64, u32);

/// More than any burst; beyond it the newest are lost and counted.
const MOST: usize = 8192;
/// How often the queue's lock is asked for, which is held for less than a microsecond. In the child of a fork the
/// thread that holds it may be gone.
const TRIES: usize = 1000;

struct Queue {
    entries: Mutex<VecDeque<LogRecord>>,
    has_entries: Condvar,
    lost: AtomicU64,
    /// Whether a thread takes entries out, or Python was asked to start it.
    has_reader: AtomicBool,
    is_ended: AtomicBool,
}

static QUEUE: Queue = Queue {
    entries: Mutex::new(VecDeque::new()),
    has_entries: Condvar::new(),
    lost: AtomicU64::new(0),
    has_reader: AtomicBool::new(false),
    is_ended: AtomicBool::new(false),
};

impl Queue {
    /// Returns the entries, if the lock is free within about a millisecond.
    fn try_entries(&self) -> Option<MutexGuard<'_, VecDeque<LogRecord>>> {
        for _ in 0..TRIES {
            match self.entries.try_lock() {
                Ok(entries) => return Some(entries),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => thread::yield_now(),
            }
        }
        None
    }

    fn put(&self, entry: LogRecord) {
        let Some(mut entries) = self.try_entries().filter(|entries| entries.len() < MOST) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        entries.push_back(entry);
        drop(entries);
        self.has_entries.notify_one();
        let is_ended = self.is_ended.load(Ordering::Relaxed);
        if !is_ended && !self.has_reader.swap(true, Ordering::Relaxed) && !begin_log_soon() {
            // The next entry asks again.
            self.has_reader.store(false, Ordering::Relaxed);
        }
    }

    /// Waits for entries and takes them all; none once the queue is ended.
    #[expect(clippy::disallowed_methods, reason = "a thread of logging's own, which has nothing else to do")]
    fn take(&self) -> Vec<LogRecord> {
        self.has_reader.store(true, Ordering::Relaxed);
        let mut entries = lock(&self.entries);
        while entries.is_empty() && !self.is_ended.load(Ordering::Relaxed) {
            entries = self.has_entries.wait(entries).unwrap_or_else(PoisonError::into_inner);
        }
        let taken = std::mem::take(&mut *entries);
        drop(entries);
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let lost = (lost > 0).then(|| {
            entry(
                target::RUNTIME,
                log::Level::Info,
                file!(),
                line!(),
                format!("{lost} records were lost: too many at once"),
            )
        });
        taken.into_iter().chain(lost).collect()
    }
}

/// An entry of now and of this thread.
fn entry(target: &str, level: log::Level, file: &'static str, line: u32, message: String) -> LogRecord {
    let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
    (target.replace("::", "."), python_level(level), file, line, message, time, ThisThread::get().system_id())
}

const fn python_level(level: log::Level) -> u8 {
    match level {
        log::Level::Error => 40,
        log::Level::Warn => 30,
        log::Level::Info => 20,
        log::Level::Debug => 10,
        log::Level::Trace => 5,
    }
}

impl Log for Queue {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        let (file, line) = (record.file_static().unwrap_or_default(), record.line().unwrap_or_default());
        self.put(entry(record.target(), record.level(), file, line, record.args().to_string()));
    }

    fn flush(&self) {}
}

/// Makes the queue the logger of this module, which has a `log` of its own. Nothing is logged before a level is set.
pub(super) fn install() {
    // A program that has set another logger keeps it.
    let _ = log::set_logger(&QUEUE);
}

#[doc = docstring!("set_log_level")]
#[pyfunction]
pub(super) fn set_log_level(level: i64) {
    log::set_max_level(match level {
        ..=5 => LevelFilter::Trace,
        6..=10 => LevelFilter::Debug,
        11..=20 => LevelFilter::Info,
        21..=30 => LevelFilter::Warn,
        31..=40 => LevelFilter::Error,
        _ => LevelFilter::Off,
    });
}

#[doc = docstring!("take_log_records")]
#[pyfunction]
pub(super) fn take_log_records(py: Python<'_>) -> Vec<LogRecord> {
    py.detach(|| QUEUE.take())
}

#[doc = docstring!("clear_log_records")]
#[pyfunction]
pub(super) fn clear_log_records() {
    QUEUE.has_reader.store(false, Ordering::Relaxed);
    if let Some(mut entries) = QUEUE.try_entries() {
        entries.clear();
    }
}

#[doc = docstring!("end_log")]
#[pyfunction]
pub(super) fn end_log() {
    // With the lock, so that no thread misses it that is about to wait.
    let _entries = QUEUE.try_entries();
    QUEUE.is_ended.store(true, Ordering::Relaxed);
    QUEUE.has_entries.notify_all();
}
