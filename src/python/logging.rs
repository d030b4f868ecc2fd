//! The queue of the `log` crate's records for Python's `logging`.
//!
//! A record may be made anywhere: in a thread that runs no Python, in a call of PyTorch's that holds PyTorch's locks,
//! with the GIL or without. To ask for the GIL there could wait for a thread that waits for those locks. So a record is
//! queued, without waiting or running Python, and a thread hands over what is queued. It is none of Python's own threads, which
//! gevent and others replace by what runs only where the others wait; and it ends when the queue is empty, since each fork of a
//! process with two threads is warned of by Python. It starts beside no fork: see `python/gpupool/_logging`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, SystemTime};

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;

use crate::observe::target;
use crate::sync::{ThisThread, lock};

/// Logger, level as `logging` numbers it, file, line, message, seconds since 1970, thread as `gettid` numbers it.
type LogRecord = (String, u8, &'static str, u32, String, f64, u32);

/// More than any burst; beyond it the newest are lost and counted.
const MOST: usize = 8192;
/// How often the queue's lock is asked for, which is held for less than a microsecond. In the child of a fork the thread that
/// holds it may be gone.
const TRIES: usize = 1000;
const STACK: usize = 8 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum LogReader {
    /// The next entry starts one.
    None,
    /// It is becoming one of Python's threads, for which it takes a lock of the interpreter's.
    Starting,
    Running,
    /// None is started any more.
    Ended,
}

struct Entries {
    list: VecDeque<LogRecord>,
    reader: LogReader,
    /// The threads that are forking the process: meanwhile none is started.
    forking: usize,
}

impl Entries {
    fn is_busy(&self) -> bool {
        matches!(self.reader, LogReader::Starting | LogReader::Running)
    }
}

struct Queue {
    entries: Mutex<Entries>,
    /// Notified when a reader has started, and when it has handed over all.
    changed: Condvar,
    lost: AtomicU64,
}

static QUEUE: Queue = Queue {
    entries: Mutex::new(Entries { list: VecDeque::new(), reader: LogReader::None, forking: 0 }),
    changed: Condvar::new(),
    lost: AtomicU64::new(0),
};

/// Python's function that takes entries.
static HAND_OVER: OnceLock<Py<PyAny>> = OnceLock::new();

impl Queue {
    /// Returns the entries, if the lock is free within about a millisecond.
    fn try_entries(&self) -> Option<MutexGuard<'_, Entries>> {
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
        let Some(mut entries) = self.try_entries().filter(|entries| entries.list.len() < MOST) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        entries.list.push_back(entry);
        self.start_reader(entries);
    }

    /// Starts a reader if there are entries for it, and none.
    fn start_reader(&self, mut entries: MutexGuard<'_, Entries>) {
        if entries.reader != LogReader::None || entries.forking > 0 || entries.list.is_empty() {
            return;
        }
        entries.reader = LogReader::Starting;
        drop(entries);
        // Handlers may need as much of it as on Python's own threads.
        if thread::Builder::new().stack_size(STACK).spawn(|| QUEUE.read()).is_err()
            && let Some(mut entries) = self.try_entries()
        {
            // The next entry asks again.
            entries.reader = LogReader::None;
            self.changed.notify_all();
        }
    }

    /// Hands over entries until there is none.
    fn read(&self) {
        let attached = Python::try_attach(|py| {
            let mut entries = lock(&self.entries);
            if entries.reader == LogReader::Starting {
                entries.reader = LogReader::Running;
            }
            drop(entries);
            self.changed.notify_all();
            while let Some(entries) = self.take() {
                hand_over(py, entries);
            }
        });
        if attached.is_none() {
            // Where the interpreter has ended nobody takes them.
            while self.take().is_some() {}
        }
    }

    /// Takes all entries; if there is none, the reader is none any more.
    fn take(&self) -> Option<Vec<LogRecord>> {
        let mut entries = lock(&self.entries);
        if entries.list.is_empty() {
            if entries.is_busy() {
                entries.reader = LogReader::None;
            }
            self.changed.notify_all();
            return None;
        }
        let taken = std::mem::take(&mut entries.list);
        drop(entries);
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let lost = (lost > 0).then(|| {
            entry(target::RUNTIME, Level::Info, file!(), line!(), format!("{lost} records were lost: too many at once"))
        });
        Some(taken.into_iter().chain(lost).collect())
    }

    /// Waits until a reader has handed over all, but not longer than this, and lets no other start. Returns the entries for
    /// which there was none.
    fn end(&self, patience: Duration) -> Option<Vec<LogRecord>> {
        // In the child of a fork it may be locked for ever.
        let entries = self.try_entries()?;
        let waited = self.changed.wait_timeout_while(entries, patience, |entries| entries.is_busy());
        let (mut entries, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        entries.reader = LogReader::Ended;
        drop(entries);
        if waited.timed_out() { None } else { self.take() }
    }

    /// Lets no reader start until [`Self::resume`], and waits, but not longer than this, until one that is starting has started.
    fn pause(&self, patience: Duration) {
        let Some(mut entries) = self.try_entries() else { return };
        entries.forking += 1;
        let is_starting = |entries: &mut Entries| entries.reader == LogReader::Starting;
        drop(self.changed.wait_timeout_while(entries, patience, is_starting));
    }

    fn resume(&self) {
        let Some(mut entries) = self.try_entries() else { return };
        entries.forking = entries.forking.saturating_sub(1);
        self.start_reader(entries);
    }
}

fn hand_over(py: Python<'_>, entries: Vec<LogRecord>) {
    if let Some(function) = HAND_OVER.get()
        && let Err(raised) = function.call1(py, (entries,))
    {
        raised.write_unraisable(py, Some(function.bind(py)));
    }
}

/// An entry of now and of this thread.
fn entry(target: &str, level: Level, file: &'static str, line: u32, message: String) -> LogRecord {
    let number = LEVELS.iter().find(|(known, _)| *known == level).map_or(0, |(_, number)| *number);
    let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
    (target.replace("::", "."), number, file, line, message, time, ThisThread::get().system_id())
}

/// Levels, the most frequent first, and how `logging` numbers them.
const LEVELS: [(Level, u8); 5] =
    [(Level::Trace, 5), (Level::Debug, 10), (Level::Info, 20), (Level::Warn, 30), (Level::Error, 40)];

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
pub(crate) fn install() {
    // A program that has set another logger keeps it.
    let _ = log::set_logger(&QUEUE);
}

#[doc = docstring!("set_log_level")]
#[pyfunction]
pub(crate) fn set_log_level(level: i64) {
    let least = LEVELS.iter().find(|(_, number)| level <= i64::from(*number));
    log::set_max_level(least.map_or(LevelFilter::Off, |(least, _)| least.to_level_filter()));
}

#[doc = docstring!("clear_log_records")]
#[pyfunction]
pub(crate) fn clear_log_records() {
    ThisThread::forget_system_id();
    if let Some(mut entries) = QUEUE.try_entries() {
        entries.list.clear();
        entries.reader = LogReader::None;
        entries.forking = 0;
    }
}

#[doc = docstring!("end_log")]
#[pyfunction]
pub(crate) fn end_log(py: Python<'_>, patience: f64) {
    let patience = Duration::try_from_secs_f64(patience).unwrap_or_default();
    if let Some(left) = py.detach(|| QUEUE.end(patience)) {
        hand_over(py, left);
    }
}

functions! { py;
    fn start_log(hand_over: Py<PyAny>) = drop(HAND_OVER.set(hand_over));
    fn pause_log(patience: f64) =
        py.detach(|| QUEUE.pause(Duration::try_from_secs_f64(patience).unwrap_or_default()));
    fn resume_log() = QUEUE.resume();
}
