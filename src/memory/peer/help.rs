//! Becoming a neighbour, and how requests come to ask the others. The process listens from then on, and stays one until it ends.
//! `serve` calls what is put there by `watch`, which every program does as it begins: if the environment asks for
//! neighbours, this process becomes one with the first device that it uses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use log::{debug, warn};

use super::ask::{Outcome, WaitFor, ask_for_memory, deadline, what_they_hold};
use super::available::free_on;
use super::claims::{held_on, lost_on};
use super::place::{Listening, Place, membership, name};
use super::service;
use super::settings::{Limits, NeighbourSettings, environment, set};
use super::status::Division;
use crate::error::{AskedNeighbours, Error, NeighbourUse, Result};
use crate::ids::Device;
use crate::memory::pool::Pool;
use crate::memory::serve::{Help, Helper};
use crate::memory::shared_block::random;
use crate::memory::sleep::wake_pool;
use crate::memory::system_limit::system_limit;
use crate::memory::tuning::{A_FEW, MANY, PAGE};
use crate::observe::target::MEMORY;
use crate::process;
use crate::runtime::{self, KnownUuids};
use crate::sync::lock;

/// The least and the most that a driver may withhold: 32 and 512 MiB.
const WITHHELD_LEAST: u64 = A_FEW as u64 * PAGE;
const WITHHELD_MOST: u64 = MANY as u64 * PAGE;

#[derive(Debug)]
struct HelpOfNeighbours;

/// What the driver did not hand out though it said that it was free, as far as was seen, on any device.
static WITHHELD: AtomicU64 = AtomicU64::new(0);

/// Returns how many bytes to ask for if so many are wanted and the driver, which has refused them, has so many free; and
/// what it withholds by then: an attempt that fails for the last bytes costs as much as one that succeeds.
fn missing(wanted: u64, free: u64, withheld: u64) -> (u64, u64) {
    let lacking = |withheld: u64| wanted.saturating_add(withheld).saturating_sub(free);
    if lacking(withheld) > 0 {
        return (lacking(withheld), withheld);
    }
    if lacking(WITHHELD_MOST) == 0 {
        // It refuses for another reason, such as a limit of the system for all processes.
        return (wanted, withheld);
    }
    let withheld = (withheld * 2).clamp(WITHHELD_LEAST, WITHHELD_MOST);
    (lacking(withheld).max(PAGE), withheld)
}

/// What came of asking last, for the error of a request that asked in vain.
static LAST: Mutex<Option<(Instant, Outcome)>> = Mutex::new(None);

/// Lets requests ask neighbours once this process is one. Cheap: every program calls it as it begins.
pub(crate) fn watch() {
    Help::Neighbours.is_from(&HelpOfNeighbours);
}

impl Helper for HelpOfNeighbours {
    fn settle_on(&self, device: Device) {
        let wanted = environment().and_then(|read| if read.place.is_some() { join() } else { Ok(()) });
        if let Err(error) = wanted {
            warn!(target: MEMORY, "{device}: this process has no neighbours: {error}");
        }
    }

    fn give(&self, device: Device, bytes: u64) -> Option<u64> {
        membership()?;
        let uuid = KnownUuids::Memory.of(device).ok()?;
        let free = free_on(device).unwrap_or(0);
        let division = Division::of(device);
        // All that the claim is for, at once.
        let claimed = held_on(device, &division).map_or(0, |held| held.saturating_sub(division.free));
        let (missing, withheld) = missing(bytes.max(claimed), free, WITHHELD.load(Ordering::Relaxed));
        WITHHELD.fetch_max(withheld, Ordering::Relaxed);
        let outcome = ask_for_memory(device, uuid, missing);
        let (given, is_one_late) = (outcome.given, outcome.is_one_late);
        *lock(&LAST) = Some((Instant::now(), outcome));
        (given > 0 || is_one_late).then_some(given)
    }

    fn asked(&self, device: Device) -> Option<AskedNeighbours> {
        membership()?;
        let uuid = KnownUuids::Memory.of(device).ok()?;
        let last = lock(&LAST).take().filter(|(when, _)| when.elapsed() < deadline() * 2);
        let (heard, took) = last.map_or_else(
            || {
                let begun = Instant::now();
                (what_they_hold(u64::MAX, None, WaitFor::Nobody), begun.elapsed())
            },
            |(_, Outcome { heard, took, .. })| (heard, took),
        );
        let refused = heard.as_ref().err().map(ToString::to_string);
        let heard = heard.unwrap_or_default();
        let on_device = heard.told().filter_map(|told| {
            let held = told.held.iter().find(|held| held.device == uuid)?;
            let (process, name) = (told.process, told.name.clone());
            let (bytes, live_bytes, guarantee, claimed_bytes) =
                (held.reserved, held.live, held.guarantee, held.claimed);
            Some(NeighbourUse { process, name, bytes, live_bytes, guarantee, claimed_bytes })
        });
        Some(AskedNeighbours {
            uses: on_device.collect(),
            answered: heard.answered(),
            unanswered: heard.unanswered(),
            took,
            refused,
            lost_claims: lost_on(device),
        })
    }

    fn wake(&self, pool: &Arc<Pool>) -> Result<()> {
        wake_pool(pool).map(drop)
    }
}

/// Held while the process becomes a neighbour.
static JOINING: Mutex<()> = Mutex::new(());

/// Makes this process a neighbour, if it is none.
///
/// # Errors
/// `ErrorKind::InvalidValue` if a variable of the environment is wrong; `ErrorKind::Unavailable` if the system has no thread
/// or descriptor left, or the directory cannot be used; `ErrorKind::Forked`.
pub(crate) fn join() -> Result<()> {
    process::refuse_forked()?;
    // A forked child is none.
    runtime::get()?;
    if membership().is_some() {
        return Ok(());
    }
    let place = environment()?.place.clone().unwrap_or(Place::Own);
    // Loads what tells of limits: the first answer must not wait for that.
    let _ = system_limit(Device::from_ordinal(0));
    let joining = lock(&JOINING);
    if membership().is_some() {
        return Ok(());
    }
    let listening = Listening::begin(place, name(random()?))?;
    service::start()?;
    listening.begin_to_answer();
    // A logger is others' code, which may wait for a thread that waits for the lock.
    drop(joining);
    watch();
    debug!(target: MEMORY, "neighbours: listening for the user's other processes on the same devices");
    Ok(())
}

/// Makes this process a neighbour of the user's other processes that use gpupool on the same devices, and sets what they
/// are told of it: its name, and for this device what it is guaranteed, what it should stay below, and its priority. From
/// then on those that lack memory ask it for what it can do without, as it asks them.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is no such device, the guarantee is above the most, or a variable of the environment is
/// wrong; `ErrorKind::Unavailable` if the system has no thread or descriptor left, or the directory of
/// `GPUPOOL_NEIGHBOURS` cannot be used; `ErrorKind::Forked`.
pub fn set_neighbour(settings: NeighbourSettings, device: Device) -> Result<()> {
    process::refuse_forked()?;
    let device = runtime::existing(device)?;
    let NeighbourSettings { name, guarantee, most, priority } = settings;
    let limits = Limits { guarantee, most, priority };
    if let Some(most) = limits.most_below_guarantee() {
        return Err(Error::invalid_value(format!(
            "a process cannot be guaranteed {guarantee} bytes of {device} and have at most {most}: lower the guarantee, or raise \
             the most"
        )));
    }
    join()?;
    set(name, limits, device);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_withholds_is_asked_for_beside_what_is_missing() {
        let gib = 1 << 30;
        assert_eq!(missing(8 * gib, gib, 0), (7 * gib, 0));
        // Refused though it was all there: the next time that is known before.
        assert_eq!(missing(8 * gib, 8 * gib, 0), (WITHHELD_LEAST, WITHHELD_LEAST));
        assert_eq!(missing(8 * gib, gib, WITHHELD_LEAST), (7 * gib + WITHHELD_LEAST, WITHHELD_LEAST));
        assert_eq!(missing(8 * gib, 8 * gib + WITHHELD_LEAST, WITHHELD_LEAST).1, 2 * WITHHELD_LEAST);
        // Refused for something else.
        assert_eq!(missing(gib, 8 * gib, 0), (gib, 0));
        assert_eq!(missing(gib, gib + WITHHELD_MOST - PAGE, WITHHELD_LEAST).0, PAGE);
    }
}
