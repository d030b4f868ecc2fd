//! What owners tell of blocks that are gone: their mappings end, and the owner is told so.

use std::sync::Arc;

use super::books::{self, Ending};
use super::news::News;
use super::owner_process::{all_news, known};
use super::retired::end_idle;
use crate::ids::Device;
use crate::memory::share::secret::Secret;
use crate::memory::share::wire::{Ask, Request};

/// Returns the connections by which owners tell of blocks that are gone.
pub(in crate::memory::share) fn listening() -> Vec<Arc<News>> {
    all_news()
}

/// Does what an owner says, and ends all that is idle of it where it has ended.
pub(in crate::memory::share) fn hear(news: &Arc<News>, has_ended: bool) {
    match news.hear() {
        Ok(numbers) if !has_ended => numbers.into_iter().for_each(|number| end(news, number)),
        _ => {
            if let Some(owner) = known(news.owner) {
                owner.end_news(news);
            }
            end_idle(books::take_of(news.owner));
        }
    }
}

fn end(news: &News, number: u64) {
    match books::end(number) {
        Ending::Idle(idle) => end_idle(vec![idle]),
        Ending::Later => {}
        // It has ended before, and its owner may not have heard of it.
        Ending::Unknown => {
            news.say_in_time(Request { ask: Ask::Unmapped, secret: Secret([0; 16]), block: 0, from: number, count: 0 });
        }
    }
}

/// Ends what is idle of other processes' memory for a device.
pub(in crate::memory::share) fn end_idle_on(device: Device) {
    end_idle(books::take_on(device));
}
