//! Names in packets: of a bounded size, filled up with zeros. They are shown in terminals and logs of other processes, so
//! what controls a terminal does not arrive.

/// The most bytes of a name that travel.
pub(in crate::memory::neighbour) const NAME_BYTES: usize = 0x40;

/// Returns as much of a name's beginning as travels, in whole characters.
pub(in crate::memory::neighbour) fn cut(name: &str) -> &str {
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

pub(super) fn to_bytes(name: &str) -> [u8; NAME_BYTES] {
    let (name, mut bytes) = (cut(name), [0; NAME_BYTES]);
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

/// Reads a name, unless it is no text.
pub(super) fn read(bytes: [u8; NAME_BYTES]) -> Option<String> {
    let used = bytes.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
    let name = str::from_utf8(&bytes[..used]).ok()?;
    Some(name.chars().map(|c| if c.is_control() { '?' } else { c }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn travelled(name: &str) -> Option<String> {
        read(to_bytes(name))
    }

    #[test]
    fn a_name_arrives_without_what_controls_a_terminal() {
        assert_eq!(travelled("caché").as_deref(), Some("caché"));
        assert_eq!(travelled("a\u{1b}[31m\u{9b}").as_deref(), Some("a?[31m?"));
        assert_eq!(travelled("").as_deref(), Some(""));
        let mut other = [0; NAME_BYTES];
        other[0] = 0xff;
        assert_eq!(read(other), None);
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        assert_eq!(travelled(&"n".repeat(NAME_BYTES + 1)), Some("n".repeat(NAME_BYTES)));
        // The last character has two bytes, of which one would fit.
        let long = format!("n{}", "é".repeat(NAME_BYTES / 2));
        assert_eq!(travelled(&long), Some(format!("n{}", "é".repeat(NAME_BYTES / 2 - 1))));
    }
}
