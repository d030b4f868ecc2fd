//! Neighbours: other processes that use gpupool on the same device.

use std::time::Duration;

use pyo3::prelude::*;

use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::{self, MemoryClaim, Neighbour, NeighbourPool, NeighbourSettings, PoolId};
use crate::python::arguments::{Guarantee, Most, Nbytes, Timeout, Whole};
use crate::python::context::Ignored;
use crate::python::device;
use crate::python::error::interruptible;
use crate::python::kept::UntilEnd;

value_class! {
    #[pyclass(name = "Neighbour", module = "gpupool.typing", frozen, get_all)]
    PyNeighbour = "Neighbour" from neighbour: Neighbour {
        pid: u32 = neighbour.process,
        name: String = neighbour.name,
        device: u32 = neighbour.device.ordinal() as u32,
        reserved_bytes: u64 = neighbour.reserved_bytes,
        live_bytes: u64 = neighbour.live_bytes,
        free_bytes: u64 = neighbour.free_bytes,
        asleep_bytes: u64 = neighbour.asleep_bytes,
        holder_bytes: Option<u64> = neighbour.holder_bytes,
        discardable_bytes: u64 = neighbour.discardable_bytes,
        offered_bytes: u64 = neighbour.offered_bytes,
        claimed_bytes: u64 = neighbour.claimed_bytes,
        guarantee: u64 = neighbour.guarantee,
        most: Option<u64> = neighbour.most,
        priority: i32 = neighbour.priority,
        system_limit: Option<u64> = neighbour.system_limit,
        is_self: bool = neighbour.is_self,
        holders: Option<Vec<(String, u64)>> = neighbour.holders,
        pools: Option<Vec<PyNeighbourPool>> = neighbour.pools.map(|pools| pools.into_iter().map(Into::into).collect()),
    } told by told
}

// What a pool of another process holds.
value_class! {
    #[pyclass(name = "NeighbourPool", module = "gpupool.typing", frozen, get_all, from_py_object)]
    #[derive(Clone)]
    PyNeighbourPool = "NeighbourPool" from pool: NeighbourPool {
        id: PoolId = pool.id,
        given_name: Option<String> = pool.name,
        reserved_bytes: u64 = pool.reserved_bytes,
        live_bytes: u64 = pool.live_bytes,
        free_bytes: u64 = pool.free_bytes,
        asleep_bytes: u64 = pool.asleep_bytes,
    } told by pool_told
}

fn told(neighbour: &PyNeighbour) -> String {
    let PyNeighbour { pid, name, reserved_bytes, live_bytes, priority, is_self, .. } = neighbour;
    let (device, this) = (device::shown(neighbour.device), if *is_self { ", this process" } else { "" });
    format!(
        "<gpupool.typing.Neighbour {pid} {name:?}, device={device}, reserved_bytes={reserved_bytes}, live_bytes={live_bytes}, \
         priority={priority}{this}>"
    )
}

fn pool_told(pool: &PyNeighbourPool) -> String {
    let PyNeighbourPool { id, given_name, reserved_bytes, live_bytes, .. } = pool;
    let name = given_name.as_ref().map_or_else(String::new, |name| format!(" {name:?}"));
    format!("<gpupool.typing.NeighbourPool {id}{name}, reserved_bytes={reserved_bytes}, live_bytes={live_bytes}>")
}

#[doc = docstring!("set_neighbour")]
#[pyfunction(
    signature = (name = None, guarantee = Whole::new(0), most = None, priority = 0, device = None),
    text_signature = "(name=None, guarantee=0, most=None, priority=0, device=None)"
)]
pub(crate) fn set_neighbour(
    py: Python<'_>,
    name: Option<String>,
    guarantee: Whole<Guarantee>,
    most: Option<Whole<Most>>,
    priority: i64,
    device: Option<Device>,
) -> PyResult<()> {
    let priority = i32::try_from(priority).map_err(|_| {
        let (least, most) = (i32::MIN, i32::MAX);
        Error::invalid_value(format!("priority is {priority}: give a whole number from {least} to {most}"))
    })?;
    let (guarantee, most) = (guarantee.0, most.map(|most| most.0));
    let settings = NeighbourSettings { name, guarantee, most, priority };
    device::detached(py, device, |device| memory::set_neighbour(settings, device))
}

#[doc = docstring!("neighbours")]
#[pyfunction(signature = (device = None, *, pools = false))]
pub(crate) fn neighbours(py: Python<'_>, device: Option<Device>, pools: bool) -> PyResult<Vec<PyNeighbour>> {
    let list = if pools { memory::neighbours_with_pools } else { memory::neighbours };
    Ok(device::detached(py, device, list)?.into_iter().map(PyNeighbour::from).collect())
}

functions! { py;
    fn available_memory(device: Option<Device> = None) -> PyResult<u64> =
        device::detached(py, device, memory::available_memory);
}

// A right to memory before it is taken, for a `with` block or until it is released.
#[doc = docstring!("MemoryClaim")]
#[pyclass(name = "MemoryClaim", module = "gpupool.typing", frozen, weakref)]
pub(crate) struct PyClaim {
    device: Device,
    nbytes: u64,
    claim: UntilEnd<MemoryClaim>,
}

#[pymethods]
impl PyClaim {
    fn __repr__(&self) -> String {
        let (device, nbytes) = (device::shown(self.device.ordinal()), self.nbytes);
        let state = if matches!(self.claim.is_over(), Ok(false)) { "" } else { ", over" };
        format!("<gpupool.typing.MemoryClaim nbytes={nbytes}, device={device}{state}>")
    }
}

members! { PyClaim = "MemoryClaim" of this, py;
    get device: Device = this.device;
    get nbytes: u64 = this.nbytes;
    get left: Result<u64> = Ok(this.claim.read(MemoryClaim::left)?.unwrap_or_default());

    fn release() -> Result<()> = this.claim.end().map(drop);
}

ends_with_block! { PyClaim = "MemoryClaim" by release() }

#[doc = docstring!("claim")]
#[pyfunction(
    signature = (nbytes, device = None, timeout = Timeout(Duration::ZERO)),
    text_signature = "(nbytes, device=None, timeout=0)"
)]
pub(crate) fn claim(
    py: Python<'_>,
    nbytes: Whole<Nbytes>,
    device: Option<Device>,
    timeout: Timeout,
) -> PyResult<PyClaim> {
    let (device, nbytes) = (device::or_current(py, device)?, nbytes.0);
    let claim =
        interruptible(py, |interruption| memory::claim_unless_interrupted(nbytes, device, timeout.0, interruption))?;
    Ok(PyClaim { device, nbytes, claim: UntilEnd::new(Some(claim)) })
}
