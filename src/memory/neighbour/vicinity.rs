//! How requests come to ask the neighbours: `serve` calls what is put there by `watch`, which every program does as it
//! begins. If the environment asks for neighbours, this process becomes one with the first device that it uses.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use log::warn;

use super::ask::{ask, deadline, what_they_hold};
use super::available::free_on;
use super::claims::held_on;
use super::division::Division;
use super::membership::{join, membership};
use super::settings::environment;
use super::wire::Told;
use crate::error::{NeighbourUse, Result};
use crate::ids::Device;
use crate::memory::pool::Pool;
use crate::memory::serve::{Vicinity, set_vicinity};
use crate::memory::sleep::wake_pool;
use crate::observe::target::MEMORY;
use crate::runtime::KnownUuids;
use crate::sync::lock;

#[derive(Debug)]
struct Neighbourhood;

/// What the neighbours told last, for the error of a request that asked them in vain.
static TOLD: Mutex<Option<(Instant, Vec<Told>)>> = Mutex::new(None);

/// Lets requests ask neighbours once this process is one. Cheap: every program calls it as it begins.
pub(crate) fn watch() {
    set_vicinity(&Neighbourhood);
}

impl Vicinity for Neighbourhood {
    fn settle_on(&self, device: Device) {
        let wanted = environment().and_then(|read| if read.place.is_some() { join() } else { Ok(()) });
        if let Err(error) = wanted {
            warn!(target: MEMORY, "{device}: this process has no neighbours: {error}");
        }
    }

    fn ask(&self, device: Device, bytes: u64) -> u64 {
        if membership().is_none() {
            return 0;
        }
        // What is free already counts, unless it was of no use.
        let free = free_on(device).unwrap_or(0);
        let division = Division::of(device);
        // All that the claim is for, at once.
        let claimed = held_on(device, &division).map_or(0, |held| held.saturating_sub(division.free));
        let missing = bytes.max(claimed).saturating_sub(free);
        let wanted = if missing > 0 { missing } else { bytes };
        let outcome = ask(device, wanted);
        *lock(&TOLD) = Some((Instant::now(), outcome.told));
        outcome.given
    }

    fn holdings(&self, device: Device) -> Vec<NeighbourUse> {
        if membership().is_none() {
            return Vec::new();
        }
        let Ok(uuid) = KnownUuids::Memory.of(device) else { return Vec::new() };
        let last = lock(&TOLD).take().filter(|(when, _)| when.elapsed() < deadline() * 2);
        let told = last.map_or_else(|| what_they_hold(u64::MAX).unwrap_or_default(), |(_, told)| told);
        let on_device = told.into_iter().filter_map(|Told { process, name, held }| {
            let held = held.into_iter().find(|held| held.device == uuid)?;
            Some(NeighbourUse { process, name, bytes: held.reserved, live_bytes: held.live, guarantee: held.guarantee })
        });
        on_device.collect()
    }

    fn wake(&self, pool: &Arc<Pool>) -> Result<()> {
        wake_pool(pool).map(drop)
    }
}
