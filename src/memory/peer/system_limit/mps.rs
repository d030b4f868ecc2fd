//! The limit of CUDA's Multi-Process Service: `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`, as in `0=2G,1=512MB`, says for each device,
//! by its number or its UUID, how much memory a process may have. The limits that the service itself was started with are
//! told to nobody.

use super::super::settings::environment;
use super::DeviceNames;
use crate::ids::Device;

/// Returns the limit that the environment has for a device. A value that is none is the driver's to refuse.
pub(super) fn limit(device: Device, names: impl Fn() -> DeviceNames) -> Option<u64> {
    let text = environment().ok()?.mps_limit.as_deref()?;
    limit_in(text, device.ordinal(), || names().uuid)
}

fn limit_in(text: &str, ordinal: usize, uuid: impl Fn() -> Option<String>) -> Option<u64> {
    let is_meant = |name: &str| match name.parse::<usize>() {
        Ok(number) => number == ordinal,
        // As where devices are made visible, its beginning is enough.
        Err(_) => uuid().is_some_and(|uuid| {
            name.len() > "GPU-".len() && uuid.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name))
        }),
    };
    let entries = text.split(',').filter_map(|entry| entry.split_once('='));
    entries.filter(|(name, _)| is_meant(name.trim())).filter_map(|(_, size)| bytes_of(size.trim())).min()
}

/// Reads a size such as `2G`, `512MB` or a number of bytes.
fn bytes_of(size: &str) -> Option<u64> {
    let digits = size.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = size.split_at(digits);
    let shift = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" => 10,
        "M" | "MB" => 20,
        "G" | "GB" => 30,
        "T" | "TB" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";

    #[test]
    fn a_device_is_named_by_its_number_or_its_uuid() {
        let read = |text: &str, ordinal| limit_in(text, ordinal, || Some(UUID.to_owned()));
        assert_eq!(read("0=2G,1=512MB", 0), Some(2 << 30));
        assert_eq!(read("0=2G, 1=512MB", 1), Some(512 << 20));
        assert_eq!(read("0=2G,1=512MB", 2), None);
        assert_eq!(read("GPU-8932F937=3G", 7), Some(3 << 30));
        assert_eq!(read(&format!("{UUID}=3g"), 7), Some(3 << 30));
        assert_eq!(read("GPU-9=3G,GPU-=1G,=2G", 7), None);
        assert_eq!(limit_in("GPU-8932=3G", 0, || None), None);
        // Named twice, the smaller one.
        assert_eq!(read("0=2G,GPU-8932=1G", 0), Some(1 << 30));
    }

    #[test]
    fn what_is_no_size_is_no_limit() {
        let read = |text: &str| limit_in(text, 0, || None);
        assert_eq!(["0=5", "0=5B", "0=6 kb", "0=1T"].map(read), [Some(5), Some(5), Some(6 << 10), Some(1 << 40)]);
        for wrong in ["", "0", "0=", "0=G", "0=-1G", "0=1.5G", "0=2X", "0=99999999999999999999", "0=99999999999G", "1G"]
        {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
