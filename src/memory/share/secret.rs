//! Random bytes that no other process can guess, and how they are compared.

use std::hint::black_box;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};

/// 128 bits.
#[derive(Clone, Copy)]
pub(super) struct Secret(pub(super) [u8; 16]);

impl Secret {
    /// Makes one.
    pub(super) fn new() -> Result<Self> {
        random().map(Self)
    }

    /// Returns whether two are the same, in a time that tells nothing of where they differ.
    pub(super) fn is(&self, other: &[u8; 16]) -> bool {
        let differing = self.0.iter().zip(other).fold(0, |differing, (one, other)| differing | (one ^ other));
        black_box(differing) == 0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Returns random bytes.
pub(super) fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(16) => Ok(bytes),
        Ok(_) => Err(Error::unavailable("the system gave too few random bytes for a share's secret")),
        Err(error) => Err(Error::unavailable(format!("the system gave no random bytes for a share's secret: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;
    use crate::error::Result;

    #[test]
    fn a_secret_is_itself_alone() -> Result<()> {
        let (one, other) = (Secret::new()?, Secret::new()?);
        assert!(one.is(&one.0) && !one.is(&other.0));
        let mut last = one.0;
        last[15] ^= 1;
        assert!(!one.is(&last));
        assert_eq!(format!("{one:?}"), "Secret");
        Ok(())
    }
}
