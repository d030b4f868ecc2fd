//! A simulated stream: its work by numbers, what that waits for, and its capture.

use std::collections::VecDeque;

use crate::error::Result;
use crate::ids::{Device, RawStream};
use crate::runtime::host::capture::SimulatedCapture;
use crate::runtime::host::words::Word;
use crate::runtime::host::work::Work;
use crate::sync::{ThisThread, ThreadNumber};

/// A stream, which also distinguishes the default streams of devices and threads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in super::super) struct StreamKey {
    pub(super) raw: RawStream,
    /// The device of a default stream; any other stream knows its own.
    pub(super) default_of: Option<Device>,
    /// The thread of a per-thread default stream.
    pub(super) thread: Option<ThreadNumber>,
}

impl StreamKey {
    pub(in super::super) fn new(raw: RawStream, device: Device) -> Self {
        // The legacy default stream has two names.
        let raw = if raw.is_legacy() { RawStream::LEGACY } else { raw };
        let thread = (raw == RawStream::PER_THREAD).then(|| ThisThread::get().number());
        Self { raw, default_of: raw.is_default().then_some(device), thread }
    }
}

#[derive(Debug)]
pub(super) struct SimulatedStream {
    pub(super) device: Device,
    /// Unique; 0 of a default one.
    pub(super) id: u64,
    /// Whether the legacy default stream must not be used while this one is captured. Their work is in no order.
    pub(super) is_blocking: bool,
    /// Whether it is destroyed, and another one has its address.
    pub(super) is_replaced: bool,
    pub(super) submitted: u64,
    pub(super) completed: u64,
    pub(super) waits: Vec<Wait>,
    /// Copies and fills that are not done, by their numbers.
    pub(super) work: VecDeque<(u64, Work)>,
    pub(super) capture: Option<SimulatedCapture>,
}

/// The source of work that is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AwaitedWork {
    Stream(StreamKey),
    /// Another process's, which alone completes it.
    Elsewhere(Word),
}

/// Work after `after` waits until `other` has completed `until`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) after: u64,
    pub(super) other: AwaitedWork,
    pub(super) until: u64,
}

impl SimulatedStream {
    pub(super) fn new(device: Device, id: u64, is_blocking: bool) -> Self {
        Self {
            device,
            id,
            is_blocking,
            is_replaced: false,
            submitted: 0,
            completed: 0,
            waits: Vec::new(),
            work: VecDeque::new(),
            capture: None,
        }
    }

    /// Does the copies and fills up to this number, which nothing blocks, and marks it as completed. Returns the first
    /// error, after running all of the work.
    pub(super) fn complete(&mut self, number: u64) -> Result<()> {
        self.completed = self.completed.max(number);
        let mut outcome = Ok(());
        while self.work.front().is_some_and(|(at, _)| *at <= number) {
            if let Some((_, work)) = self.work.pop_front() {
                outcome = outcome.and(work.run(self.device));
            }
        }
        outcome
    }
}
