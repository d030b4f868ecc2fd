//! Becoming a neighbour: the process listens from then on, and the broker's thread answers. It stays one until it ends.
//! A process that is none may look at those that are: it asks them where the environment says that they meet.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};

use log::debug;

use super::address::{Place, name};
use super::settings::{Limits, NeighbourSettings, environment, set};
use super::system_limit::system_limit;
use super::vicinity::watch;
use super::visitors::Visitors;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::share::{admit, random};
use crate::observe::target::MEMORY;
use crate::sync::lock;
use crate::{process, runtime};

/// Where this process listens, once it is a neighbour.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) place: Place,
    pub(super) name: String,
}

static MEMBERSHIP: OnceLock<Membership> = OnceLock::new();
/// Held while the process becomes one.
static JOINING: Mutex<()> = Mutex::new(());

/// Returns where this process listens; none if it is no neighbour.
pub(super) fn membership() -> Option<&'static Membership> {
    MEMBERSHIP.get().filter(|_| !process::is_forked())
}

/// Connects to all neighbours but this process, which need not be one.
///
/// # Errors
/// `ErrorKind::InvalidValue` if a variable of the environment is wrong; `ErrorKind::Unavailable` if the system does not tell
/// who is there.
pub(super) fn connect_to_all() -> Result<Vec<OwnedFd>> {
    let found = match membership() {
        Some(own) => own.place.connect_to_others(&own.name).map_err(|error| (error, &own.place)),
        None => {
            let place = environment()?.place.as_ref().unwrap_or(&Place::Own);
            place.connect_to_others("").map_err(|error| (error, place))
        }
    };
    found.map_err(|(error, place)| not_found(place, &error))
}

/// Makes this process a neighbour, if it is none.
///
/// # Errors
/// `ErrorKind::InvalidValue` if a variable of the environment is wrong; `ErrorKind::Unavailable` if the system has no thread
/// or descriptor left, or the directory cannot be used; `ErrorKind::Forked`.
pub(crate) fn join() -> Result<()> {
    process::refuse_forked()?;
    // A forked child is none.
    runtime::get()?;
    if MEMBERSHIP.get().is_some() {
        return Ok(());
    }
    let place = environment()?.place.clone().unwrap_or(Place::Own);
    // Loads what tells of limits: the first answer must not wait for that.
    let _ = system_limit(Device::from_ordinal(0));
    let joining = lock(&JOINING);
    if MEMBERSHIP.get().is_some() {
        return Ok(());
    }
    let name = name(random()?);
    let listener = place.listen(&name).map_err(|error| unreachable(&place, &error))?;
    admit(Arc::new(Visitors::new(listener)))?;
    let _ = MEMBERSHIP.set(Membership { place, name });
    // A logger is others' code, which may wait for a thread that waits for the lock.
    drop(joining);
    watch();
    debug!(target: MEMORY, "neighbours: listening for the user's other processes on the same devices");
    Ok(())
}

#[cold]
fn unreachable(place: &Place, error: &std::io::Error) -> Error {
    Error::unavailable(format!(
        "this process cannot be a neighbour of others: no socket in {:?}: {error}. {}",
        place.folder(),
        advice(place)
    ))
}

#[cold]
fn not_found(place: &Place, error: &std::io::Error) -> Error {
    Error::unavailable(format!("no neighbours can be found in {:?}: {error}. {}", place.folder(), advice(place)))
}

fn advice(place: &Place) -> &'static str {
    match place {
        Place::Own => {
            "Neighbours need a directory of this user's own, with mode 0700: XDG_RUNTIME_DIR says below which, by default /tmp; \
             and descriptors (ulimit -n)"
        }
        Place::Folder(_) => "GPUPOOL_NEIGHBOURS names a directory that exists, and that may be read and written to",
    }
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
