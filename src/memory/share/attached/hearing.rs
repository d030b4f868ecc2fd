//! What owners tell of regions that have ended: their mappings end, and the owner is told so.

use std::sync::Arc;

use super::books::{self, Ending};
use super::mapping::unmapped;
use super::news::News;
use super::owner_process::{all_news, known};
use super::retired::end_mappings;
use crate::ids::Device;

/// Returns the connections by which owners tell of regions that have ended.
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
            end_mappings(books::take_of(news.owner));
        }
    }
}

fn end(news: &News, number: u64) {
    match books::end(number) {
        Ending::Idle(idle) => end_mappings(vec![idle]),
        Ending::Later => {}
        // It has ended before, and its owner may not have heard of it.
        Ending::Unknown => news.say_in_time(unmapped(number)),
    }
}

/// Ends what is idle of other processes' memory for a device.
pub(in crate::memory::share) fn end_idle_on(device: Device) {
    end_mappings(books::take_on(device));
}
