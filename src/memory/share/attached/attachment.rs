//! The use of another process's block.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::books::{self, Leaving, RegionKey};
use super::mapping::Mapping;
use super::news::Said;
use super::owner_process::Owner;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::device::DeviceMemory;
use crate::memory::share::secret::Secret;
use crate::memory::share::token::Told;
use crate::memory::share::wire::{Ask, Request};

/// A block that this process holds, in a region that is mapped here. It has an end of its own, [`Attachment::end`].
#[derive(Debug)]
pub(in crate::memory::share) struct Attachment {
    pub(super) memory: &'static DeviceMemory,
    /// The device that has it.
    pub(super) home: Device,
    owner: Arc<Owner>,
    pub(super) region: RegionKey,
    pub(super) block: u64,
    secret: Secret,
    /// The number of the mapping that it uses.
    pub(super) mapping: u64,
    pub(in crate::memory::share) address: u64,
    bytes: u64,
    step: Step,
}

/// How far the end of a use has come.
#[derive(Debug)]
enum Step {
    /// It has not begun.
    Used,
    /// The mapping is to stay, and the owner to be told so.
    Staying,
    /// The block is to be let go, once what is left of the mapping has ended, if anything.
    Going(Option<Box<Mapping>>),
}

impl Attachment {
    /// Makes one of a block that is held, in a mapping that counts it.
    pub(super) fn new(owner: &Arc<Owner>, told: &Told, region: RegionKey, lead: u64, mapping: &Mapping) -> Self {
        mapping.memory.attached.fetch_add(told.bytes, Ordering::Relaxed);
        Self {
            memory: mapping.memory,
            home: mapping.home,
            owner: Arc::clone(owner),
            region,
            block: told.block,
            secret: told.secret,
            mapping: mapping.number,
            address: mapping.start + lead,
            bytes: told.bytes,
            step: Step::Used,
        }
    }

    /// Counts it as attached no more.
    pub(super) fn uncount(&self) {
        self.memory.attached.fetch_sub(self.bytes, Ordering::Relaxed);
    }

    const fn let_go(&self, mapping: u64) -> Request {
        Request { ask: Ask::LetGo, secret: self.secret, block: self.block, from: mapping, count: 0 }
    }

    /// Lets the block go. Its region stays mapped if it may; else that is unmapped before. Returns the mappings that have to go
    /// for it.
    ///
    /// # Errors
    /// What refuses, or has no time, for the moment; it goes on from there the next time.
    pub(super) fn end(&mut self) -> Result<Vec<Mapping>> {
        if matches!(self.step, Step::Used) {
            self.step = match books::leave(self.mapping, self.owner.news().is_some()) {
                Leaving::Stays => Step::Staying,
                Leaving::Used => Step::Going(None),
                Leaving::Ends(mapping) => Step::Going(mapping.map(Box::new)),
            };
        }
        if matches!(self.step, Step::Staying) {
            match self.owner.news().map_or(Said::Never, |news| news.say(&self.let_go(self.mapping))) {
                Said::Now => return Ok(books::settle(self)),
                Said::NotYet => return Err(no_time()),
                Said::Never => self.step = Step::Going(books::take_unused(self.mapping).map(Box::new)),
            }
        }
        if let Step::Going(left) = &mut self.step {
            if let Some(mapping) = left {
                mapping.end()?;
            }
            *left = None;
        }
        if !self.owner.tell(&self.let_go(0)) {
            return Err(no_time());
        }
        books::forget(self);
        Ok(Vec::new())
    }
}

#[cold]
fn no_time() -> Error {
    Error::unavailable("the process that shares the memory has no time to be told")
}
