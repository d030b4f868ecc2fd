//! What the tests of the simulated devices share.

#![allow(dead_code, unused_macros, reason = "each test file uses its part")]

pub(crate) mod c_pools;
pub(crate) mod memory;
#[macro_use]
pub(crate) mod process;

use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gpupool::library::simulated::SimulatedLibrary;
use gpupool::{Device, HandlePool, HandleStats, Stream};
use log::{LevelFilter, Log, Metadata, Record};

pub(crate) const MEMORY: u64 = 1 << 30;

/// Simulated devices in a process of the test's own, where the test goes on: so many, by default two, each with so many
/// bytes.
macro_rules! host {
    () => {
        host!(2, $crate::common::MEMORY);
    };
    ($devices:expr, $bytes:expr) => {
        in_own_process!();
        gpupool::runtime::host::simulate($devices, $bytes).expect("no other runtime was chosen");
    };
}

/// The same for a test after which nobody holds memory: that all of it is back is checked once the test's own values are gone.
macro_rules! memory {
    ($($simulated:tt)*) => {
        host!($($simulated)*);
        let _all_back = $crate::common::memory::AllBack;
    };
}

pub(crate) fn device(ordinal: u32) -> Device {
    Device::from_ordinal(ordinal)
}

pub(crate) fn stream(ordinal: u32) -> Stream {
    Stream::new(device(ordinal)).expect("a stream")
}

/// For how long a test of random work or of faults goes on, in seconds: `make thorough` and `make soak` say more.
const SECONDS: f64 = 1.0;

/// Numbers from 1 on, one for each turn of such work: until the test's time is over, but so many at least.
///
/// # Panics
/// If `GPUPOOL_TEST_SECONDS` is no number of seconds.
pub(crate) fn turns(least: u64) -> impl Iterator<Item = u64> {
    process::set_by_time();
    let seconds = match std::env::var("GPUPOOL_TEST_SECONDS") {
        Ok(said) => said.parse().expect("GPUPOOL_TEST_SECONDS is a number of seconds"),
        Err(_) => SECONDS,
    };
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    (1..).take_while(move |&turn| turn <= least || Instant::now() < end)
}

/// Waits until the condition holds; `what` says which it is, for the panic that comes if it never does.
#[track_caller]
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(120), "waited in vain until {what}");
        thread::yield_now();
    }
}

/// Runs `f` on a thread that has ended when this returns, its thread-locals destroyed.
pub(crate) fn on_thread<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    thread::spawn(f).join().expect("the thread does not panic")
}

/// A pool of handles of the test's own.
pub(crate) fn handle_pool() -> HandlePool {
    HandlePool::new(SimulatedLibrary).expect("a pool")
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does what it is told, one thing after the other, for as long as this lives.
pub(crate) struct Worker {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start() -> Self {
        let (jobs, given) = channel::<Job>();
        Self { jobs: Some(jobs), thread: Some(thread::spawn(move || given.into_iter().for_each(|job| job()))) }
    }

    pub(crate) fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (done, result) = channel();
        let job = Box::new(move || done.send(job()).unwrap());
        self.jobs.as_ref().unwrap().send(job).unwrap();
        result.recv().expect("the job does not panic")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

struct Logger(fn(&Record<'_>));

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.0(record);
    }

    fn flush(&self) {}
}

/// Has the process tell each line that it logs, of the level of debugging too.
pub(crate) fn log_to(told: fn(&Record<'_>)) {
    log::set_logger(Box::leak(Box::new(Logger(told)))).unwrap();
    log::set_max_level(LevelFilter::Debug);
}

/// Every handle made is idle, held, leased or discarded, or was destroyed.
pub(crate) fn assert_none_lost(stats: HandleStats) {
    let found = stats.idle + stats.held + stats.leased + stats.discarded + stats.destroyed;
    assert_eq!(stats.created, found, "{stats:?}");
}
