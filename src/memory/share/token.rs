//! The token of a shared block: the address of its owner, and a secret that proves that the holder was given the token.
//!
//! It consists of bytes that can be sent in any way. An error names what is wrong with one: it is another machine's,
//! another user's, of another version of gpupool, or no token at all.

use std::fmt;
use std::sync::OnceLock;

use super::secret::Secret;
use crate::error::{Error, Result};
use crate::runtime::{DeviceUuid, Kind};

const MAGIC: [u8; 4] = *b"gpsh";
/// Of this layout, and of what processes say to each other.
const FORMAT: u16 = 2;
const BYTES: usize = 0x6c;

/// Names a block that another process shares; [`attach`](crate::attach) attaches it. It consists of bytes that can be
/// sent in any way; a process of the same user that has them can read and write the block.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ShareToken([u8; BYTES]);

/// What a token says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) kind: u8,
    pub(super) boot: [u8; 16],
    pub(super) user: u32,
    pub(super) process: u32,
    pub(super) name: [u8; 16],
    pub(super) secret: Secret,
    pub(super) block: u64,
    /// The number of what is kept until this is attached; 0 for none.
    pub(super) parcel: u64,
    pub(super) bytes: u64,
    pub(super) device: DeviceUuid,
}

/// The version of this crate, as numbers.
fn version() -> [u8; 3] {
    let mut parts = [0; 3];
    for (place, part) in parts.iter_mut().zip(env!("CARGO_PKG_VERSION").split(['.', '-'])) {
        *place = part.parse().unwrap_or(0);
    }
    parts
}

pub(super) const fn number_of(kind: Kind) -> u8 {
    match kind {
        Kind::Cuda => 1,
        Kind::Hip => 2,
        Kind::Host => 3,
    }
}

fn name_of(kind: u8) -> &'static str {
    match kind {
        1 => "cuda",
        2 => "hip",
        3 => "host",
        _ => "unknown",
    }
}

/// Returns the id of the machine's present run, the same in all its containers.
pub(super) fn boot() -> Result<[u8; 16]> {
    static BOOT: OnceLock<[u8; 16]> = OnceLock::new();
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    if let Some(boot) = BOOT.get() {
        return Ok(*boot);
    }
    let text = std::fs::read_to_string(PATH).map_err(|error| {
        Error::unavailable(format!("{PATH}, by which machines are told apart, cannot be read: {error}"))
    })?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(|error| {
        Error::unavailable(format!("{PATH}, by which machines are told apart, holds no id: {error}"))
    })?;
    Ok(*BOOT.get_or_init(|| number.to_be_bytes()))
}

/// Puts fields one after the other.
struct Writer {
    bytes: [u8; BYTES],
    at: usize,
}

impl Writer {
    fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }
}

/// Takes fields one after the other.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        let (first, rest) = self.0.split_at(N.min(self.0.len()));
        field[..first.len()].copy_from_slice(first);
        self.0 = rest;
        field
    }
}

impl ShareToken {
    /// The size of a token in bytes.
    pub const BYTES: usize = BYTES;

    pub(super) fn new(told: &Told) -> Self {
        let mut writer = Writer { bytes: [0; BYTES], at: 0 };
        writer.put(&MAGIC);
        writer.put(&FORMAT.to_le_bytes());
        writer.put(&version());
        writer.put(&[told.kind, 0, 0]);
        writer.put(&told.boot);
        writer.put(&told.user.to_le_bytes());
        writer.put(&told.process.to_le_bytes());
        writer.put(&told.name);
        writer.put(&told.secret.0);
        writer.put(&told.block.to_le_bytes());
        writer.put(&told.parcel.to_le_bytes());
        writer.put(&told.bytes.to_le_bytes());
        writer.put(&told.device);
        Self(writer.bytes)
    }

    /// Creates a token from the bytes that [`ShareToken::as_bytes`] returned, in this process or another one.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the bytes are not a token, or one of another version of gpupool.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < 9 || bytes[..4] != MAGIC {
            return Err(Error::invalid_value(
                "these bytes are not a token of a shared buffer: give what share() returned, unchanged",
            ));
        }
        let format = u16::from_le_bytes([bytes[4], bytes[5]]);
        let whole = bytes.try_into().ok().filter(|_| format == FORMAT);
        whole.map(Self).ok_or_else(|| {
            let [major, minor, patch] = [bytes[6], bytes[7], bytes[8]];
            let own = env!("CARGO_PKG_VERSION");
            if format == FORMAT {
                return wrong_size(bytes.len() as u64);
            }
            Error::invalid_value(format!(
                "the token was made by gpupool {major}.{minor}.{patch}, whose tokens (format {format}) gpupool {own} does not \
                 know (format {FORMAT}): use the same version in both processes"
            ))
        })
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the size of the block in bytes.
    pub fn nbytes(&self) -> u64 {
        self.told().bytes
    }

    /// Returns the id of the process that shares it.
    pub fn process(&self) -> u32 {
        self.told().process
    }

    pub(super) fn told(&self) -> Told {
        let mut reader = Reader(&self.0[12..]);
        let kind = self.0[9];
        Told {
            kind,
            boot: reader.take(),
            user: u32::from_le_bytes(reader.take()),
            process: u32::from_le_bytes(reader.take()),
            name: reader.take(),
            secret: Secret(reader.take()),
            block: u64::from_le_bytes(reader.take()),
            parcel: u64::from_le_bytes(reader.take()),
            bytes: u64::from_le_bytes(reader.take()),
            device: reader.take(),
        }
    }
}

impl Told {
    /// Refuses a token of another machine, user or platform.
    pub(super) fn check(&self, kind: Kind, user: u32) -> Result<()> {
        let why = if self.boot != boot()? {
            "was made on another machine, or before this one was started anew, and memory is shared within one machine: send \
             the content instead"
                .to_owned()
        } else if self.user != user {
            format!(
                "was made by user {}, and this process is user {user}'s: memory is shared between processes of one user",
                self.user
            )
        } else if self.kind != number_of(kind) {
            format!(
                "is of memory of runtime {}, and this process uses runtime {kind}: set GPUPOOL_RUNTIME to the same in both",
                name_of(self.kind)
            )
        } else {
            return Ok(());
        };
        Err(Error::invalid_value(format!("the token {why}")))
    }
}

impl fmt::Debug for ShareToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = self.told();
        f.debug_struct("ShareToken")
            .field("process", &told.process)
            .field("nbytes", &told.bytes)
            .finish_non_exhaustive()
    }
}

/// Returns the error of a token that has another size than tokens have.
pub(in crate::memory) fn wrong_size(bytes: u64) -> Error {
    Error::invalid_value(format!(
        "a token has {BYTES} bytes, and this one has {bytes}: give what share() returned, unchanged"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> Result<Told> {
        Ok(Told {
            kind: number_of(Kind::Host),
            boot: boot()?,
            user: 1000,
            process: 77,
            name: [1; 16],
            secret: Secret([2; 16]),
            block: 3,
            parcel: 4,
            bytes: 5,
            device: [6; 16],
        })
    }

    fn why<T>(outcome: Result<T>) -> String {
        outcome.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_a_token_says_travels_as_bytes() -> Result<()> {
        let token = ShareToken::new(&told()?);
        let copy = ShareToken::from_bytes(token.as_bytes())?;
        let read = copy.told();
        assert!(copy == token && read.secret.is(&[2; 16]) && read.name == [1; 16] && read.device == [6; 16]);
        assert_eq!((read.user, read.process, read.block, read.parcel, read.bytes), (1000, 77, 3, 4, 5));
        assert!(read.check(Kind::Host, 1000).is_ok());
        assert_eq!(format!("{token:?}"), "ShareToken { process: 77, nbytes: 5, .. }");
        Ok(())
    }

    #[test]
    fn a_token_of_elsewhere_is_refused_by_name() -> Result<()> {
        let refusal = |told: Told, kind, user| why(told.check(kind, user));
        assert!(refusal(Told { boot: [9; 16], ..told()? }, Kind::Host, 1000).contains("another machine"));
        assert!(refusal(told()?, Kind::Host, 1001).contains("user 1000, and this process is user 1001's"));
        assert!(refusal(told()?, Kind::Cuda, 1000).contains("runtime host, and this process uses runtime cuda"));
        Ok(())
    }

    #[test]
    fn bytes_that_are_no_token_are_refused_by_name() -> Result<()> {
        let bytes = ShareToken::new(&told()?).as_bytes().to_vec();
        let refusal = |bytes: &[u8]| why(ShareToken::from_bytes(bytes));
        assert!(refusal(b"").contains("not a token"));
        assert!(refusal(&[0; BYTES]).contains("not a token"));
        assert!(refusal(&bytes[..BYTES - 1]).contains("has 108 bytes, and this one has 107"));
        let mut newer = bytes;
        (newer[4], newer[6], newer[7], newer[8]) = (3, 7, 8, 9);
        assert!(refusal(&newer).contains("made by gpupool 7.8.9"), "{}", refusal(&newer));
        Ok(())
    }
}
