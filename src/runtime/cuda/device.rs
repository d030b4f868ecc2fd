//! The devices, and their primary contexts.

use std::ffi::c_int;
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys;

use super::Cuda;
use super::extent_use::KnownUse;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::runtime::{MemoryCalls, Runtime, no_such_device};

pub(super) struct CudaDevice {
    pub(super) handle: c_int,
    /// The address of the primary context, once retained.
    primary: OnceLock<usize>,
    pub(super) extent_use: KnownUse,
}

impl CudaDevice {
    pub(super) fn new(handle: c_int) -> Self {
        Self { handle, primary: OnceLock::new(), extent_use: KnownUse::default() }
    }
}

impl Cuda {
    /// Returns whether any code of the process has made the device's primary context active.
    fn has_context(&self, slot: &CudaDevice) -> Result<bool> {
        if slot.primary.get().is_some() {
            return Ok(true);
        }
        let (mut flags, mut active) = (0, 0);
        // SAFETY: both are valid places for ints, and the handle came from `cuDeviceGet`.
        self.check(unsafe { self.symbols.primary_state.call(slot.handle, &mut flags, &mut active) })?;
        Ok(active != 0)
    }

    pub(super) fn attribute(&self, attribute: sys::CUdevice_attribute, device: Device) -> Result<c_int> {
        let (mut value, handle) = (0, self.slot(device)?.handle);
        // SAFETY: `value` is a valid place for an int, and the handle came from `cuDeviceGet`.
        self.check(unsafe { self.symbols.device_attribute.call(&mut value, attribute as c_int, handle) })?;
        Ok(value)
    }

    pub(super) fn slot(&self, device: Device) -> Result<&CudaDevice> {
        self.devices.get(device.ordinal()).ok_or_else(|| no_such_device(device.ordinal() as i64, self.devices.len()))
    }

    pub(super) fn all_devices(&self) -> impl Iterator<Item = Device> + use<> {
        (0..self.devices.len() as u32).map(Device::from_ordinal)
    }

    /// Returns the address of the device's primary context, retained at the first call. Two threads may both retain it,
    /// which does not matter, since it is never released.
    pub(super) fn primary(&self, device: Device) -> Result<usize> {
        let slot = self.slot(device)?;
        if let Some(&context) = slot.primary.get() {
            return Ok(context);
        }
        let mut context = ptr::null_mut();
        // SAFETY: `context` is a valid place for a context, and the handle came from `cuDeviceGet`.
        self.check(unsafe { self.symbols.primary_retain.call(&mut context, slot.handle) }).map_err(|e| e.on(device))?;
        Ok(*slot.primary.get_or_init(|| context.addr()))
    }

    /// Returns the context for calls on the host's memory: none if the thread has any; else the first active one of a
    /// device, so that no context is made on a device that the program does not use.
    pub(super) fn context_for_host(&self) -> Result<Option<usize>> {
        if self.current_context()? != 0 {
            return Ok(None);
        }
        let active = self.devices.iter().position(|slot| self.has_context(slot).unwrap_or(false)).unwrap_or(0);
        self.primary(Device::from_ordinal(active as u32)).map(Some)
    }

    /// Returns the device whose primary context this is, if it was retained here.
    #[inline]
    pub(super) fn known_device_of(&self, context: usize) -> Option<Device> {
        let ordinal = self.devices.iter().position(|slot| slot.primary.get() == Some(&context))?;
        Some(Device::from_ordinal(ordinal as u32))
    }

    /// Returns the device of a current context that is not a primary one, or not yet known.
    #[cold]
    pub(super) fn current_device_by_handle(&self) -> Result<Device> {
        let mut handle = 0;
        // SAFETY: `handle` is a valid place for a device.
        self.check(unsafe { self.symbols.device_of_context.call(&mut handle) })?;
        let ordinal = self.devices.iter().position(|slot| slot.handle == handle);
        ordinal
            .map(|ordinal| Device::from_ordinal(ordinal as u32))
            .ok_or_else(|| Error::internal("the current context is of a device that the driver did not list"))
    }

    /// Returns the free memory of the device; none while its primary context is not active.
    pub(super) fn free_memory(&self, device: Device) -> Result<Option<u64>> {
        if !self.has_context(self.slot(device)?)? {
            return Ok(None);
        }
        let previous = self.bind(device.into())?;
        let memory = self.memory_info();
        if let Some(previous) = previous {
            self.restore(previous);
        }
        memory.map(|memory| Some(memory.free))
    }

    /// Returns the device whose primary context this is, if that is active.
    pub(super) fn device_of(&self, context: usize) -> Result<Option<Device>> {
        for (ordinal, slot) in (0..).zip(&self.devices) {
            let device = Device::from_ordinal(ordinal);
            if self.has_context(slot)? && self.primary(device)? == context {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }
}
