//! Attached memory that was freed: let go once the work that used it is done. It stays mapped for the next time, or is
//! unmapped.
//!
//! The broker's thread asks for that, so no caller waits, and the owner is told at once also where this process does nothing
//! more with memory.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use log::Level;

use super::attachment::Attachment;
use super::imported::release_again;
use super::mapping::Mapping;
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::device::{Until, log_out};
use crate::memory::share::bell::ring;
use crate::memory::share::sharing::SharedBlock;
use crate::memory::tuning::{RETRY, RETRY_MOST};
use crate::sync::lock;

/// What a buffer of attached memory has.
#[derive(Clone, Debug)]
pub(in crate::memory::share) enum Use {
    /// Another process's memory.
    Mapped(Arc<Attachment>),
    /// This process's own, attached by itself.
    Own(Arc<SharedBlock>),
}

#[derive(Debug)]
struct Retired {
    used: Use,
    until: Until,
    device: Device,
}

static RETIRED: Mutex<Vec<Retired>> = Mutex::new(Vec::new());

/// Ends a use once `until` is done.
pub(in crate::memory::share) fn retire(used: Use, until: Until, device: Device) {
    lock(&RETIRED).push(Retired { used, until, device });
    ring();
}

/// Ends what is done, and returns whether anything is left.
pub(in crate::memory::share) fn end_done() -> bool {
    let retired = std::mem::take(&mut *lock(&RETIRED));
    let mut left = Vec::new();
    for mut one in retired {
        let is_done = match DeviceCaches::known(one.device) {
            Some(caches) => one.until.is_done(&caches.memory.events, false),
            None => Ok(true),
        };
        match is_done {
            Ok(true) => end(one, &mut left),
            Ok(false) => left.push(one),
            Err(error) => {
                log_out(Level::Debug, format_args!("attached memory is not let go yet: {error}"));
                left.push(one);
            }
        }
    }
    let unended = std::mem::take(&mut *lock(&UNENDED));
    let is_left = keep_unended(unended) | release_again() || !left.is_empty();
    lock(&RETIRED).append(&mut left);
    is_left
}

/// Ends a use whose work is done. What is refused is added to `left`.
fn end(Retired { used, .. }: Retired, left: &mut Vec<Retired>) {
    match used {
        Use::Own(block) => block.sharing.let_go(),
        Use::Mapped(attachment) => {
            // Only this thread ends uses, so the last one is seen here.
            let Some(mut attachment) = Arc::into_inner(attachment) else { return };
            match attachment.end() {
                Ok(ending) => end_mappings(ending),
                Err(error) => {
                    log_out(Level::Debug, format_args!("attached memory could not be let go: {error}"));
                    let device = attachment.memory.device;
                    let used = Use::Mapped(Arc::new(attachment));
                    left.push(Retired { used, until: Until::at_once(), device });
                }
            }
        }
    }
}

/// Mappings that the driver refused to end.
static UNENDED: Mutex<Vec<Mapping>> = Mutex::new(Vec::new());

/// Ends mappings that nothing uses, at once. What the driver refuses is ended later.
pub(super) fn end_mappings(mappings: Vec<Mapping>) {
    if keep_unended(mappings) {
        ring();
    }
}

/// Ends mappings, and returns whether any is kept for later.
fn keep_unended(mut mappings: Vec<Mapping>) -> bool {
    let refuses = |mapping: &mut Mapping| {
        let outcome = mapping.end();
        if let Err(error) = &outcome {
            log_out(Level::Debug, format_args!("attached memory could not be unmapped: {error}"));
        }
        outcome.is_err()
    };
    mappings.retain_mut(refuses);
    let is_left = !mappings.is_empty();
    lock(&UNENDED).append(&mut mappings);
    is_left
}

/// When to ask again: soon after something was retired, then ever less often.
#[derive(Debug, Default)]
pub(in crate::memory::share) struct Soon {
    next: Option<Instant>,
    pause: Duration,
}

impl Soon {
    /// Asks at once.
    pub(in crate::memory::share) fn begin(&mut self) {
        self.next = Some(Instant::now());
        self.pause = RETRY / 10;
    }

    /// Returns how long it is until then.
    pub(in crate::memory::share) fn next(&self) -> Option<Duration> {
        self.next.map(|next| next.saturating_duration_since(Instant::now()))
    }

    pub(in crate::memory::share) fn is_due(&self) -> bool {
        self.next.is_some_and(|next| next <= Instant::now())
    }

    /// Notes that it was asked, and whether anything is left.
    pub(in crate::memory::share) fn note(&mut self, is_left: bool) {
        self.next = is_left.then(|| Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(RETRY_MOST);
    }
}
