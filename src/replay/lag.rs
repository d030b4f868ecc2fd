//! A GPU that lags behind: each event of a log is a piece of work on its stream, which is done a while later.

use std::collections::VecDeque;

use crate::error::Result;
use crate::runtime::Stream;
use crate::runtime::host::{complete, submit};
use crate::sync::{Mutex, lock};

/// The work of a replay on a simulated device.
pub(super) struct Lag {
    /// The most pieces that are under way.
    most: usize,
    /// The stream of each piece and its number there, in the order in which they were submitted, and end.
    under_way: Mutex<VecDeque<(u32, u64)>>,
}

impl Lag {
    pub(super) fn new(most: usize) -> Self {
        Self { most, under_way: Mutex::default() }
    }

    /// Submits a piece of work to one of the streams, and completes what is not to be under way any more.
    pub(super) fn submit(&self, stream: u32, streams: &[Stream]) -> Result<()> {
        if self.most == 0 {
            return Ok(());
        }
        let mut under_way = lock(&self.under_way);
        let number = submit(&streams[stream as usize])?;
        under_way.push_back((stream, number));
        let done = under_way.len().saturating_sub(self.most);
        under_way.drain(..done).try_for_each(|(stream, number)| complete(&streams[stream as usize], number))
    }

    /// Completes all work.
    pub(super) fn end(&self, streams: &[Stream]) -> Result<()> {
        let mut under_way = lock(&self.under_way);
        under_way.drain(..).try_for_each(|(stream, number)| complete(&streams[stream as usize], number))
    }
}
