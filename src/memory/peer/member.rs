//! Becoming a neighbour: the process listens in a directory from then on, and its thread answers there too. It stays one until it ends.
//! A process that is none may look at those that are: it asks them where the environment says that they meet.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Mutex;

use log::debug;

use super::help::watch;
use super::place::{Listening, OpenPlace, Place, membership, name};
use super::service;
use super::settings::{Limits, NeighbourSettings, environment, set};
use super::system_limit::system_limit;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::shared_block::random;
use crate::observe::target::MEMORY;
use crate::process::peer_of;
use crate::sync::lock;
use crate::{process, runtime};

/// Held while the process becomes one.
static JOINING: Mutex<()> = Mutex::new(());

/// All neighbours but this process, which need not be one.
#[derive(Debug)]
pub(super) struct Others {
    /// None if there are none.
    pub(super) open: Option<OpenPlace>,
    pub(super) names: VecDeque<String>,
    place: &'static Place,
}

/// Looks for all neighbours but this process, and sees to it that they find this one.
///
/// # Errors
/// `ErrorKind::InvalidValue` if a variable of the environment is wrong; `ErrorKind::Unavailable` if the system does not tell
/// who is there.
pub(super) fn others() -> Result<Others> {
    let (place, own) = match membership() {
        Some(own) => {
            own.stay_to_be_found().map_err(|error| unreachable(&own.place, &error))?;
            (&own.place, own.name.as_str())
        }
        None => (environment()?.place.as_ref().unwrap_or(&Place::Own), ""),
    };
    let look = || {
        let open = place.look()?;
        let names = open.as_ref().map(|open| open.others(own)).transpose()?.unwrap_or_default();
        Ok(Others { open, names, place })
    };
    look().map_err(|error| not_found(place, &error))
}

impl Others {
    /// Returns the error of one that cannot be asked, whoever that is.
    #[cold]
    pub(super) fn cannot_be_asked(&self, error: &io::Error) -> Error {
        Error::unavailable(format!(
            "not all neighbours in {:?} can be asked: {error}. Let the process open more descriptors (ulimit -n), and its \
             container allow Unix sockets and SO_PEERCRED (seccomp)",
            self.place.folder()
        ))
    }
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
    let name = name(random()?);
    let listening = Listening::begin(place.clone(), name).map_err(|error| unreachable(&place, &error))?;
    // A neighbour compares users, so where the system does not tell them it could be asked nothing.
    peer_of(listening.socket().as_fd()).map_err(|error| unreachable(&place, &error))?;
    service::start()?;
    listening.begin_to_answer();
    // A logger is others' code, which may wait for a thread that waits for the lock.
    drop(joining);
    watch();
    debug!(target: MEMORY, "neighbours: listening for the user's other processes on the same devices");
    Ok(())
}

#[cold]
fn unreachable(place: &Place, error: &io::Error) -> Error {
    Error::unavailable(format!(
        "this process cannot be a neighbour of others: no socket in {:?}: {error}. {}",
        place.folder(),
        advice(place)
    ))
}

#[cold]
fn not_found(place: &Place, error: &io::Error) -> Error {
    Error::unavailable(format!("no neighbours can be found in {:?}: {error}. {}", place.folder(), advice(place)))
}

fn advice(place: &Place) -> &'static str {
    match place {
        Place::Own => {
            "Neighbours need a directory of this user's own, with mode 0700: XDG_RUNTIME_DIR says below which, by default /tmp; \
             descriptors (ulimit -n), and Unix sockets with SO_PEERCRED, which a container's seccomp may refuse"
        }
        Place::Folder(_) => {
            "GPUPOOL_NEIGHBOURS names a directory that exists, and that may be read and written to; descriptors (ulimit -n) and \
             Unix sockets with SO_PEERCRED (seccomp) are needed as well"
        }
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
