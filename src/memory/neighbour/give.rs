//! Giving memory back for a neighbour: what it asks for, at most, and never below what this process is guaranteed. The
//! broker's thread does it, so nothing here calls the program's own code or waits longer than the neighbour does, except for
//! what the driver takes.

use std::thread;
use std::time::{Duration, Instant};

use log::info;

use super::claims::held_on;
use super::division::{Division, gives_free_memory, is_on_offer};
use super::settings::limits_on;
use super::wire::Spare;
use crate::ids::Device;
use crate::memory::cache::{DeviceCaches, ToDiscard};
use crate::memory::device::Patience;
use crate::memory::serve::{Help, trim_some, without_callbacks};
use crate::memory::sleep::sleep_for_others;
use crate::memory::tuning::RETRY;
use crate::observe::target::MEMORY;
use crate::sync::ThisThread;

/// Gives back at most about so many bytes of a device, and returns how many the driver has by then.
pub(super) fn give(device: Device, spare: Spare, asked: u64, within: Duration) -> u64 {
    let Some(caches) = DeviceCaches::known(device) else { return 0 };
    let until = Instant::now() + within;
    let gone = gone_since(caches);
    let division = Division::of(device);
    let held = held_on(device, &division);
    let above = division.reserved.saturating_sub(limits_on(device).guarantee);
    let above = match spare {
        // What a claim is to be taken from, in this process's cache, it keeps.
        Spare::Free => above.min(division.free.saturating_sub(held.unwrap_or(0))),
        Spare::Discardable => above,
        Spare::Offered if held.is_some() => 0,
        Spare::Offered => above,
    };
    let allowance = Allowance { asked, above };
    // Idle handles are beside what is guaranteed.
    if allowance.wanted() == 0 && spare != Spare::Free {
        return 0;
    }
    let of_handles = without_callbacks(|| match spare {
        Spare::Free => give_free(caches, device, allowance, until),
        Spare::Discardable => {
            let (wanted, most) = (allowance.wanted(), allowance.above);
            caches.discardable.discard(ToDiscard { wanted, most, patience: Patience::Ask }, None);
            0
        }
        Spare::Offered => {
            give_offered(caches, allowance, until);
            0
        }
    });
    gone() + of_handles
}

/// Returns what tells how many bytes have gone to the driver since now, whatever the program takes meanwhile.
fn gone_since(caches: &'static DeviceCaches) -> impl Fn() -> u64 {
    let went = || caches.memory.given_back();
    let before = went();
    move || went().saturating_sub(before)
}

pub(super) const fn kind_of(spare: Spare) -> &'static str {
    match spare {
        Spare::Free => "free memory",
        Spare::Discardable => "discardable pages",
        Spare::Offered => "pools that sleep for others",
    }
}

/// How much may go.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    asked: u64,
    /// What this process has above its guarantee.
    above: u64,
}

impl Allowance {
    fn wanted(self) -> u64 {
        self.asked.min(self.above)
    }

    fn less(self, gone: u64) -> Self {
        Self { asked: self.asked.saturating_sub(gone), above: self.above.saturating_sub(gone) }
    }
}

/// Gives back free memory, and then idle handles, of which it returns the bytes. Pages that the GPU may be using go as
/// soon as it is done, which is waited for as long as the neighbour waits.
fn give_free(caches: &'static DeviceCaches, device: Device, allowance: Allowance, until: Instant) -> u64 {
    let thread = ThisThread::get();
    let gone = gone_since(caches);
    let mut going = 0;
    for pool in caches.pools.all().iter().filter(|pool| gives_free_memory(pool)) {
        let left = allowance.less(going);
        if left.wanted() == 0 {
            break;
        }
        // What the driver refuses is tried again whenever memory is given back.
        going += trim_some(pool, thread, left.wanted(), left.above - left.wanted()).unwrap_or(0);
    }
    while gone() < going && Instant::now() < until {
        caches.memory.try_end_retired();
        if !caches.memory.has_retired() {
            // Another thread ends it, or has it in use again.
            let _ = caches.memory.under_way.wait();
            break;
        }
        thread::sleep(RETRY);
    }
    if going >= allowance.asked {
        return 0;
    }
    Help::IdleHandles.give(device, allowance.asked).unwrap_or(0)
}

fn give_offered(caches: &'static DeviceCaches, allowance: Allowance, until: Instant) {
    let gone = gone_since(caches);
    for pool in caches.pools.all().iter().filter(|pool| is_on_offer(pool)) {
        let left = allowance.less(gone());
        if left.wanted() == 0 || Instant::now() >= until {
            break;
        }
        // It goes as a whole, or not at all.
        if pool.budget().reserved() <= left.above
            && let Err(error) = sleep_for_others(pool, until)
        {
            info!(target: MEMORY, "pool {} does not sleep for a neighbour: {error}", pool.label());
        }
    }
}
