//! The token of a shared block: the address of its owner, and a secret that proves that the holder was given the token.
//! Its bytes can be sent in any way. Errors name what is wrong: another machine, user or version of gpupool, or no
//! token at all. It names a device by its UUID, as processes may number devices differently.

use std::fmt;
use std::sync::OnceLock;

use super::codec::{BlockKey, VERSION};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::shared_block::Secret;
use crate::runtime::{DeviceUuid, Kind, KnownUuids};

const MAGIC: [u8; 4] = *b"gpsh";
const BYTES: usize = 0x6c;

/// Names a block that another process shares; [`attach`](crate::attach) attaches it. It consists of bytes that can be
/// sent in any way; a process of the same user that has them can read and write the block.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ShareToken([u8; BYTES]);

#[derive(Clone, Copy, Debug)]
pub(super) struct TokenFields {
    pub(super) kind: u8,
    pub(super) boot: [u8; 16],
    pub(super) user: u32,
    pub(super) process: u32,
    /// The name that the owner listens under.
    pub(super) name: [u8; 16],
    pub(super) key: BlockKey,
    /// The number under which the block is in flight; 0 if it is not.
    pub(super) in_flight: u64,
    pub(super) bytes: u64,
    pub(super) device: DeviceUuid,
}

/// The version of this crate, as numbers.
fn version() -> [u8; 3] {
    let parts = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    parts.map(|part| part.parse().unwrap_or(0))
}

pub(super) const fn number_of(kind: Kind) -> u8 {
    kind as u8 + 1
}

/// Returns the id of the machine's present boot, the same in all its containers.
pub(super) fn boot() -> Result<[u8; 16]> {
    static BOOT: OnceLock<[u8; 16]> = OnceLock::new();
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    if let Some(boot) = BOOT.get() {
        return Ok(*boot);
    }
    let refused = |why| Error::unavailable(format!("{PATH}, by which machines are distinguished, {why}"));
    let text = std::fs::read_to_string(PATH).map_err(|error| refused(format!("cannot be read: {error}")))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(|error| refused(format!("holds no id: {error}")))?;
    Ok(*BOOT.get_or_init(|| number.to_be_bytes()))
}

/// Returns the device that a token names.
pub(super) fn device_with(uuid: &DeviceUuid) -> Result<Device> {
    KnownUuids::Devices.device_with(uuid)?.ok_or_else(|| {
        Error::invalid_value(format!(
            "the shared buffer is on the device with the UUID {:032x}, which this process does not see: make it visible \
             here (CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES)",
            u128::from_be_bytes(*uuid)
        ))
    })
}

/// Reads fields in order from bytes that are as long as all of them.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

impl ShareToken {
    /// The size of a token in bytes.
    pub const BYTES: usize = BYTES;

    pub(super) fn new(fields: &TokenFields) -> Self {
        let TokenFields { kind, boot, user, process, name, key: BlockKey { block, secret }, in_flight, bytes, device } =
            fields;
        let [user, process] = [user, process].map(|number| number.to_le_bytes());
        let [block, in_flight, bytes] = [block, in_flight, bytes].map(|number| number.to_le_bytes());
        let start = [&MAGIC[..], &VERSION.to_le_bytes(), &version(), &[*kind, 0, 0]].concat();
        let whole = [&start[..], boot, &user, &process, name, &secret.0, &block, &in_flight, &bytes, device].concat();
        let mut token = [0; BYTES];
        token.copy_from_slice(&whole);
        Self(token)
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
        let whole = bytes.try_into().ok().filter(|_| format == VERSION);
        whole.map(Self).ok_or_else(|| {
            let [major, minor, patch] = [bytes[6], bytes[7], bytes[8]];
            let own = env!("CARGO_PKG_VERSION");
            if format == VERSION {
                return wrong_size(bytes.len() as u64);
            }
            Error::invalid_value(format!(
                "the token was made by gpupool {major}.{minor}.{patch}, whose tokens (format {format}) gpupool {own} does not \
                 know (format {VERSION}): use the same version in both processes"
            ))
        })
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the size of the block in bytes.
    pub fn nbytes(&self) -> u64 {
        self.fields().bytes
    }

    /// Returns the id of the process that shares it.
    pub fn process(&self) -> u32 {
        self.fields().process
    }

    pub(super) fn fields(&self) -> TokenFields {
        let mut reader = Reader(&self.0[12..]);
        TokenFields {
            kind: self.0[9],
            boot: reader.take(),
            user: reader.u32(),
            process: reader.u32(),
            name: reader.take(),
            key: {
                let secret = Secret(reader.take());
                BlockKey { secret, block: reader.u64() }
            },
            in_flight: reader.u64(),
            bytes: reader.u64(),
            device: reader.take(),
        }
    }
}

impl TokenFields {
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
            let known = [Kind::Cuda, Kind::Hip, Kind::Host].into_iter().find(|known| number_of(*known) == self.kind);
            let name = known.map_or("unknown", Kind::name);
            format!(
                "is of memory of runtime {name}, and this process uses runtime {kind}: set GPUPOOL_RUNTIME to the same in both"
            )
        } else {
            return Ok(());
        };
        Err(Error::invalid_value(format!("the token {why}")))
    }
}

impl fmt::Debug for ShareToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.fields();
        f.debug_struct("ShareToken")
            .field("process", &fields.process)
            .field("nbytes", &fields.bytes)
            .finish_non_exhaustive()
    }
}

pub(crate) fn wrong_size(bytes: u64) -> Error {
    Error::invalid_value(format!(
        "a token has {BYTES} bytes, and this one has {bytes}: give what share() returned, unchanged"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Result<TokenFields> {
        Ok(TokenFields {
            kind: number_of(Kind::Host),
            boot: boot()?,
            user: 1000,
            process: 77,
            name: [1; 16],
            key: BlockKey { block: 3, secret: Secret([2; 16]) },
            in_flight: 4,
            bytes: 5,
            device: [6; 16],
        })
    }

    fn why<T>(outcome: Result<T>) -> String {
        outcome.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_a_token_says_travels_as_bytes() -> Result<()> {
        let token = ShareToken::new(&fields()?);
        let copy = ShareToken::from_bytes(token.as_bytes())?;
        let read = copy.fields();
        assert!(copy == token && read.key.secret.is(&[2; 16]) && read.name == [1; 16] && read.device == [6; 16]);
        assert_eq!((read.user, read.process, read.key.block, read.in_flight, read.bytes), (1000, 77, 3, 4, 5));
        assert!(read.check(Kind::Host, 1000).is_ok());
        assert_eq!(format!("{token:?}"), "ShareToken { process: 77, nbytes: 5, .. }");
        Ok(())
    }

    #[test]
    fn a_token_of_elsewhere_is_refused_by_name() -> Result<()> {
        let refusal = |fields: TokenFields, kind, user| why(fields.check(kind, user));
        assert!(refusal(TokenFields { boot: [9; 16], ..fields()? }, Kind::Host, 1000).contains("another machine"));
        assert!(refusal(fields()?, Kind::Host, 1001).contains("user 1000, and this process is user 1001's"));
        assert!(refusal(fields()?, Kind::Cuda, 1000).contains("runtime host, and this process uses runtime cuda"));
        Ok(())
    }

    #[test]
    fn bytes_that_are_no_token_are_refused_by_name() -> Result<()> {
        let bytes = ShareToken::new(&fields()?).as_bytes().to_vec();
        let refusal = |bytes: &[u8]| why(ShareToken::from_bytes(bytes));
        assert!(refusal(b"").contains("not a token"));
        assert!(refusal(&[0; BYTES]).contains("not a token"));
        assert!(refusal(&bytes[..BYTES - 1]).contains("has 108 bytes, and this one has 107"));
        let mut newer = bytes;
        (newer[4], newer[6], newer[7], newer[8]) = (99, 7, 8, 9);
        assert!(refusal(&newer).contains("made by gpupool 7.8.9"), "{}", refusal(&newer));
        Ok(())
    }
}
