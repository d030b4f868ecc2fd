//! What a platform reports about a device, for people and their bug reports: one struct, one call.

use super::{BoundDevice, MemoryInfo, RelaxedCapture, existing, get};
use crate::error::Result;
use crate::ids::{Device, MemoryLocation};

/// What a platform reports about a device.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name as its vendor gives it.
    pub name: String,
    /// The UUID as `nvidia-smi -L` and `rocminfo` write it: `GPU-...`, `MIG-...`; none if the device has none.
    pub uuid: Option<String>,
    /// Compute capability, major and minor; none for devices without one, such as AMD's.
    pub compute_capability: Option<(u32, u32)>,
    /// Its PCI address, as `domain:bus:device.function`; none if it has none.
    pub pci_bus_id: Option<String>,
    /// Whether it is a MIG instance, a part of a GPU: <https://docs.nvidia.com/datacenter/tesla/mig-user-guide/>.
    pub is_mig: bool,
    /// Whether gpupool's memory on it can be shared with other processes.
    pub is_shareable: bool,
    /// Whether network cards can register gpupool's memory on it (GPUDirect RDMA).
    pub is_rdma: bool,
    /// The device's total memory, in bytes.
    pub total_bytes: u64,
    /// The free memory, in bytes. None if this process has no context on the device: creating one would use some
    /// hundred MiB of that memory.
    pub free_bytes: Option<u64>,
}

/// Returns what the device's platform reports about it. It creates no context, and invalidates no capture.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses; `ErrorKind::InvalidValue` if there is no such device; otherwise as
/// [`get`].
pub fn device_info(device: Device) -> Result<DeviceInfo> {
    let device = existing(device)?;
    let runtime = get()?;
    let _relaxed = RelaxedCapture::new(runtime)?;
    runtime.device_info(device).map_err(|error| error.on(device))
}

/// Returns the free and total memory there; for a device in a context that this makes if there is none.
pub(crate) fn memory_info(location: impl Into<MemoryLocation>) -> Result<MemoryInfo> {
    let (runtime, location) = (get()?, location.into());
    let info = match location {
        MemoryLocation::Device(device) => {
            let _bound = BoundDevice::of(runtime, device)?;
            runtime.memory_info()
        }
        MemoryLocation::Host(node) => runtime.host_memory_info(node),
    };
    info.map_err(|error| error.on(location))
}

/// Returns a string that a driver wrote into a buffer, up to its final zero.
pub(super) fn text(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|&byte| byte == 0).unwrap_or(buffer.len());
    String::from_utf8_lossy(&buffer[..end]).into_owned()
}

/// Returns the bytes of a UUID as text, without a prefix.
pub(super) fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.into_iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvidia_smi_writes_it() {
        let bytes = std::array::from_fn(|index| index as u8 * 17);
        assert_eq!(uuid_text(bytes), "00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn a_drivers_string_ends_at_its_zero_or_with_the_buffer() {
        assert_eq!((text(b"0000:18:00.0\0..").as_str(), text(b"full").as_str()), ("0000:18:00.0", "full"));
    }
}
