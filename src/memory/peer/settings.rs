//! What a program tells of itself: a name, and for each device what it is never asked to go below, what it should stay
//! below, and how much it matters. From its calls, or from the environment for what no call has set.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use super::codec::{BYTES_MOST, cut_name};
use super::place::Place;
use crate::environment::{integer, number, text};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::tuning::GIVEN_WITHIN;
use crate::sync::lock;

/// Switches neighbours on: `1`, or the directory in which processes of several containers find each other.
const SWITCH: &str = "GPUPOOL_NEIGHBOURS";
const NAME: &str = "GPUPOOL_NEIGHBOUR_NAME";
const GUARANTEE: &str = "GPUPOOL_NEIGHBOUR_GUARANTEE";
const MOST: &str = "GPUPOOL_NEIGHBOUR_MOST";
const PRIORITY: &str = "GPUPOOL_NEIGHBOUR_PRIORITY";
const DEADLINE: &str = "GPUPOOL_NEIGHBOUR_DEADLINE_MS";
/// A day.
const DEADLINE_MOST: u64 = 0x526_5c00;

/// What this process tells its neighbours of itself; see [`set_neighbour`](crate::set_neighbour).
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct NeighbourSettings {
    /// The process's name in lists and errors, of which 64 bytes are told; by default that of its program.
    pub name: Option<String>,
    /// Bytes of the device that it is never asked to go below.
    pub guarantee: u64,
    /// Bytes of the device beyond which it is asked first, and gives free memory back unasked while others need some.
    pub most: Option<u64>,
    /// How much it matters: those with the lowest number are asked first.
    pub priority: i32,
}

/// What holds for one device.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    pub(super) guarantee: u64,
    pub(super) most: Option<u64>,
    pub(super) priority: i32,
}

impl Limits {
    /// Returns the most, if it is less than what is guaranteed.
    pub(super) fn most_below_guarantee(&self) -> Option<u64> {
        self.most.filter(|most| *most < self.guarantee)
    }
}

/// What the program has set.
#[derive(Debug)]
struct Set {
    name: Option<String>,
    limits: BTreeMap<Device, Limits>,
}

static SET: Mutex<Set> = Mutex::new(Set { name: None, limits: BTreeMap::new() });

/// What the environment says.
#[derive(Debug)]
pub(super) struct FromEnvironment {
    /// Where neighbours meet, if it switches them on.
    pub(super) place: Option<Place>,
    name: Option<String>,
    limits: Limits,
    /// How long asking for memory may take in all.
    pub(super) deadline: Duration,
}

impl FromEnvironment {
    fn read() -> Result<Self> {
        let place = match text(SWITCH)?.as_deref() {
            None | Some("0") => None,
            Some("1") => Some(Place::Own),
            Some(folder) if folder.contains('/') => Some(Place::Folder(PathBuf::from(folder))),
            Some(other) => {
                return Err(Error::invalid_value(format!(
                    "{SWITCH}={other:?} is neither 1 (on) nor 0 (off), nor a directory, with a slash in its path; set it to one \
                     of them, or unset it"
                )));
            }
        };
        let most = text(MOST)?.map(|_| number(MOST, 0..=BYTES_MOST, 0)).transpose()?;
        let limits = Limits { guarantee: number(GUARANTEE, 0..=BYTES_MOST, 0)?, most, priority: integer(PRIORITY, 0)? };
        if let Some(most) = limits.most_below_guarantee() {
            return Err(Error::invalid_value(format!(
                "{GUARANTEE}={} is more than {MOST}={most}, and a process cannot be guaranteed more than it is to have at most: \
                 lower the first, or raise the second",
                limits.guarantee
            )));
        }
        let deadline = number(DEADLINE, 1..=DEADLINE_MOST, GIVEN_WITHIN.as_millis() as u64)?;
        Ok(Self { place, name: text(NAME)?, limits, deadline: Duration::from_millis(deadline) })
    }
}

/// Returns what the environment says; read once.
///
/// # Errors
/// `ErrorKind::InvalidValue` for a wrong value, which it names.
pub(super) fn environment() -> Result<&'static FromEnvironment> {
    static READ: OnceLock<FromEnvironment> = OnceLock::new();
    if let Some(read) = READ.get() {
        return Ok(read);
    }
    let read = FromEnvironment::read()?;
    Ok(READ.get_or_init(|| read))
}

/// Sets what the neighbours are told, for a device.
pub(super) fn set(name: Option<String>, limits: Limits, device: Device) {
    let mut set = lock(&SET);
    set.name = name.or(set.name.take());
    set.limits.insert(device, limits);
}

/// Returns what holds for a device.
pub(super) fn limits_on(device: Device) -> Limits {
    let set = lock(&SET).limits.get(&device).copied();
    set.or_else(|| environment().ok().map(|read| read.limits)).unwrap_or_default()
}

/// Returns the devices that something was set for.
pub(super) fn devices_set() -> Vec<Device> {
    lock(&SET).limits.keys().copied().collect()
}

/// Returns the name of the program, as the system has it.
fn program() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    let read = || std::fs::read_to_string("/proc/self/comm").map(|name| name.trim_end().to_owned());
    NAME.get_or_init(|| read().unwrap_or_default())
}

/// Returns the name that the neighbours are told: what was set, or the program's.
pub(super) fn name() -> String {
    let set = lock(&SET).name.clone().or_else(|| environment().ok().and_then(|read| read.name.clone()));
    cut_name(&set.unwrap_or_else(|| program().to_owned())).to_owned()
}
