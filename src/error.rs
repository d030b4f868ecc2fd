//! One error type for the whole crate. Every variant says what failed, in which library and function, with which
//! status, on which device, in which file, and what to do about it.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::time::Duration;

use crate::ids::{Device, MemoryLocation};

/// The result of every fallible call of the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a user's own `create`, `destroy` or `set_stream`.
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// The library of calls that gpupool refuses itself.
pub(crate) const GPUPOOL: &str = "gpupool";
/// The name of a status without a name in the library; only the number identifies it.
pub(crate) const UNKNOWN_STATUS: &str = "unknown status";
/// The library of calls that a pool's own allocator refuses.
pub(crate) const OWN_ALLOCATOR: &str = "the pool's own allocator";

/// An error of the crate. One pointer wide, so that the path without errors stays in registers.
#[derive(Debug)]
pub struct Error(Box<ErrorKind>);

/// What went wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The GPU platform that the call needs is missing: no driver, one that does not work, no device, or a runtime other than
    /// the chosen one.
    RuntimeUnavailable {
        /// `cuda`, `hip` or `host`.
        runtime: &'static str,
        /// Why, and what to do.
        reason: String,
        /// Whether the platform is installed but does not work, rather than not installed.
        is_present: bool,
    },
    /// A library could not be loaded.
    LibraryNotFound {
        /// The pool's name for it, such as `cudnn`.
        library: &'static str,
        /// Every place tried, with what was found there.
        tried: Vec<String>,
        /// How to install it, such as a pip command.
        remedy: String,
        /// Whether a file was found that could not be used, rather than none at all.
        is_present: bool,
    },
    /// A library or the driver refused a call.
    Library(LibraryError),
    /// Device memory ran out, also after gpupool released its unused memory.
    OutOfMemory(Box<OutOfMemory>),
    /// All handles that a pool may have are in use, and remained in use for as long as the request could wait.
    PoolExhausted(PoolExhausted),
    /// The process was forked after the GPU was first used, and this is the child.
    Forked,
    /// A mistake of the caller: an invalid argument, or a call at the wrong time.
    InvalidValue(String),
    /// The request is for a pool that is asleep.
    Asleep(String),
    /// This pool, device or driver cannot do what is asked; or the system, or a table of a fixed size, is exhausted: no
    /// thread, no descriptor, no number left.
    Unavailable(String),
    /// The program's own code that the call ran, such as a callback for a lack of memory, ended the call with an error.
    Interrupted {
        /// The error of that code.
        cause: Cause,
        /// Why the call ran it, if it would have failed anyway.
        refused: Option<Error>,
    },
    /// A bug in gpupool.
    InternalError(String),
}

/// What a status code means, beyond its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusKind {
    /// The library reports that memory ran out.
    OutOfMemory,
    /// "Not initialized": what most libraries return when a handle could not be created, often for lack of memory.
    NotInitialized,
    /// The driver is too old for the call, or the device cannot do it.
    NotSupported,
    /// Anything else.
    Other,
}

/// A refused call of a library or of the driver.
#[derive(Debug)]
pub struct LibraryError {
    /// The library, such as `cudnn`, `cuda` for the CUDA driver, `hip` for HIP, or the name of a user's own pool.
    pub library: String,
    /// The function called, such as `cudnnCreate`.
    pub function: String,
    /// The status's name, such as `CUDNN_STATUS_NOT_INITIALIZED`.
    pub status: String,
    /// The status's number.
    pub code: i32,
    /// What the status means for the caller.
    pub kind: StatusKind,
    /// What the call was for: a device, or the host's memory on a NUMA node.
    pub location: Option<MemoryLocation>,
    /// The file that the library was loaded from.
    pub path: Option<PathBuf>,
    /// Further details, and what to do.
    pub advice: Option<String>,
    /// The error of a user's own callback.
    pub cause: Option<Cause>,
}

/// What needed device memory that was not available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// A handle of a library, with the bytes that it is known to use; 0 if unknown.
    Handle(u64),
    /// Memory of a pool.
    Memory {
        /// The requested bytes.
        bytes: u64,
        /// The pool, by its id as text.
        pool: String,
        /// The pool's limit, in bytes.
        limit: Option<u64>,
    },
    /// The bytes of a claim to memory that is to be taken later.
    Claim(u64),
    /// The bytes of addresses at which to map a device's memory. Addresses ran out, not memory.
    Addresses(u64),
}

/// Device memory that ran out.
#[derive(Debug)]
pub struct OutOfMemory {
    /// The refused call.
    pub refused: LibraryError,
    /// The device; for pinned memory the NUMA node of the host.
    pub location: MemoryLocation,
    /// What was requested.
    pub wanted: Wanted,
    /// Free device memory at the last attempt, in bytes.
    pub free: u64,
    /// The device's total memory, in bytes.
    pub total: u64,
    /// What gpupool holds on this device.
    pub users: Vec<MemoryUse>,
    /// What other libraries of this process hold there; unknown unless the process is watched.
    pub holders: Vec<MemoryHolder>,
    /// What neighbours, other processes that use gpupool, hold of the device; none unless neighbours are used.
    pub neighbours: Option<AskedNeighbours>,
}

/// How asking the neighbours went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AskedNeighbours {
    /// What those that answered hold of the device.
    pub uses: Vec<NeighbourUse>,
    /// How many answered.
    pub answered: usize,
    /// How many did not answer in time, or could not be asked.
    pub unanswered: usize,
    /// How long they were asked.
    pub took: Duration,
    /// Why they could not be asked.
    pub refused: Option<String>,
    /// Bytes of this process's claims that are lost because it did not answer in time itself.
    pub lost_claims: u64,
}

/// The device memory of another process that uses gpupool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NeighbourUse {
    /// The process's id.
    pub process: u32,
    /// Its name, as the process states it.
    pub name: String,
    /// Device memory in bytes.
    pub bytes: u64,
    /// How much of that is in live blocks.
    pub live_bytes: u64,
    /// Bytes that it is not asked to go below.
    pub guarantee: u64,
    /// Bytes that it has claimed and not taken yet.
    pub claimed_bytes: u64,
}

/// The device memory of one of gpupool's pools, of memory or of handles.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryUse {
    /// The pool's name.
    pub pool: String,
    /// Its live blocks, or its handles.
    pub count: usize,
    /// Device memory in bytes.
    pub bytes: u64,
    /// How much of that is in live blocks; none for a pool of handles.
    pub live_bytes: Option<u64>,
}

/// Other code in this process that holds device memory, as `libgpupool_watch.so` counts it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryHolder {
    /// The library's name, such as NCCL; the file's name if no other is known.
    pub name: String,
    /// The file that asked the driver for the memory.
    pub path: String,
    /// Device memory in bytes; for a library with a handle pool, without what its handles are known to have.
    pub bytes: u64,
    /// The peak, including what handles have.
    pub peak_bytes: u64,
    /// Its allocations.
    pub count: u64,
}

/// A pool without a handle for a request.
#[derive(Debug)]
pub struct PoolExhausted {
    /// The library.
    pub library: String,
    /// The device.
    pub device: Device,
    /// The maximum number of handles that the pool may have there.
    pub limit: usize,
    /// How long the request waited.
    pub waited: Duration,
    /// The holders of the handles, a line each.
    pub holders: Vec<String>,
}

impl Error {
    /// Returns what went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    pub(crate) fn into_kind(self) -> ErrorKind {
        *self.0
    }

    /// Creates an error for a refused call of which only the name and the status are known.
    pub fn refused(library: &str, function: &str, status: impl Into<String>, code: i32, kind: StatusKind) -> Self {
        ErrorKind::Library(LibraryError {
            library: library.to_owned(),
            function: function.to_owned(),
            status: status.into(),
            code,
            kind,
            location: None,
            path: None,
            advice: None,
            cause: None,
        })
        .into()
    }

    /// Returns whether a library or driver refused a call with this status code.
    pub(crate) fn is_status(&self, code: i32) -> bool {
        matches!(self.kind(), ErrorKind::Library(refused) if refused.code == code)
    }

    /// Creates the error of a request that gpupool itself refuses for want of memory.
    #[cold]
    pub(crate) fn no_memory(library: &str, why: impl Into<String>) -> Self {
        Self::refused(library, "allocate", "out of memory", 2, StatusKind::OutOfMemory)
            .map_library(|refused| refused.advice = Some(why.into()))
    }

    #[cold]
    pub(crate) fn invalid_value(what: impl Into<String>) -> Self {
        ErrorKind::InvalidValue(what.into()).into()
    }

    /// Creates the error for a refusal by the system, or for a full table of fixed size.
    #[cold]
    pub(crate) fn unavailable(what: impl Into<String>) -> Self {
        ErrorKind::Unavailable(what.into()).into()
    }

    /// Creates the error of a call that the program's own code ends with an error.
    #[cfg(feature = "python")]
    pub(crate) fn interrupted(cause: Cause) -> Self {
        ErrorKind::Interrupted { cause, refused: None }.into()
    }

    /// Adds to the error of an interrupted call why it ran the program's code; other errors pass unchanged.
    pub(crate) fn while_refused(mut self, why: impl FnOnce() -> Self) -> Self {
        if let ErrorKind::Interrupted { refused: refused @ None, .. } = self.0.as_mut() {
            *refused = Some(why());
        }
        self
    }

    /// Creates the error for a bug in gpupool.
    #[cold]
    pub(crate) fn internal(what: impl Into<String>) -> Self {
        ErrorKind::InternalError(what.into()).into()
    }

    #[cold]
    pub(crate) fn runtime_unavailable(runtime: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::RuntimeUnavailable { runtime, reason: reason.into(), is_present: false }.into()
    }

    /// As [`Error::runtime_unavailable`], for an installed platform that does not work.
    #[cold]
    pub(crate) fn runtime_broken(runtime: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::RuntimeUnavailable { runtime, reason: reason.into(), is_present: true }.into()
    }

    /// Adds to a refused call what its caller knows; other errors pass unchanged.
    pub(crate) fn map_library(mut self, add: impl FnOnce(&mut LibraryError)) -> Self {
        if let ErrorKind::Library(refused) = self.0.as_mut() {
            add(refused);
        }
        self
    }

    /// Adds advice to a refused call, after the advice that it has already.
    #[cold]
    pub(crate) fn advised(self, advice: impl Display) -> Self {
        self.map_library(|refused| {
            let known = refused.advice.take().map_or(String::new(), |known| format!("{known}. "));
            refused.advice = Some(format!("{known}{advice}"));
        })
    }

    /// Returns whether a library or the driver refused a call for this reason.
    pub(crate) fn is_of(&self, kind: StatusKind) -> bool {
        matches!(self.kind(), ErrorKind::Library(refused) if refused.kind == kind)
    }

    pub(crate) fn on(self, location: impl Into<MemoryLocation>) -> Self {
        self.map_library(|refused| refused.location = refused.location.or(Some(location.into())))
    }
}

impl From<ErrorKind> for Error {
    #[cold]
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(kind))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            ErrorKind::RuntimeUnavailable { runtime, reason, .. } => {
                write!(f, "the {runtime} runtime is unavailable: {reason}")
            }
            ErrorKind::LibraryNotFound { library, tried, remedy, .. } => {
                write!(f, "{library} was not found.")?;
                for place in tried {
                    write!(f, "\n  tried {place}")?;
                }
                write!(f, "\n{remedy}")
            }
            ErrorKind::Library(refused) => refused.fmt(f),
            ErrorKind::OutOfMemory(out) => out.fmt(f),
            ErrorKind::PoolExhausted(exhausted) => exhausted.fmt(f),
            ErrorKind::Forked => f.write_str(
                "this process was forked after the GPU was first used, and neither CUDA nor HIP works in such a child. \
                 Start workers with the 'spawn' or 'forkserver' method, or fork before the first GPU call",
            ),
            ErrorKind::InvalidValue(what) | ErrorKind::Asleep(what) | ErrorKind::Unavailable(what) => f.write_str(what),
            ErrorKind::Interrupted { cause, refused: None } => {
                write!(f, "the program's own code ended the call: {cause}")
            }
            ErrorKind::Interrupted { cause, refused: Some(refused) } => {
                write!(f, "{refused}. The program's own code ended the call then: {cause}")
            }
            ErrorKind::InternalError(what) => {
                write!(f, "a bug in gpupool: {what}; please report it at {}", env!("CARGO_PKG_REPOSITORY"))
            }
        }
    }
}

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} failed with ", OneLine(&self.library), self.function)?;
        match self.status.as_str() {
            UNKNOWN_STATUS => write!(f, "{UNKNOWN_STATUS} {}", self.code)?,
            status => write!(f, "{status} ({})", self.code)?,
        }
        if let Some(location) = self.location {
            write!(f, " on {location}")?;
        }
        if let Some(path) = &self.path {
            write!(f, ", library {}", path.display())?;
        }
        if let Some(advice) = &self.advice {
            write!(f, ". {advice}")?;
        }
        if let Some(cause) = &self.cause {
            write!(f, ": {cause}")?;
        }
        Ok(())
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pinned, range) = match self.location {
            MemoryLocation::Device(_) => ("", "the device's memory"),
            MemoryLocation::Host(_) => ("pinned ", "pinned memory"),
        };
        write!(f, "out of {pinned}memory on {}: ", self.location)?;
        match &self.wanted {
            Wanted::Handle(0) => write!(f, "{}.", self.refused)?,
            Wanted::Handle(needed) => {
                let library = OneLine(&self.refused.library);
                write!(f, "{}. A {library} handle takes about {}.", self.refused, Bytes(*needed))?;
            }
            Wanted::Memory { bytes, pool, limit } => {
                write!(f, "tried to allocate {} ({bytes} bytes) from pool {pool}", Bytes(*bytes))?;
                if let Some(limit) = limit {
                    write!(f, ", whose limit is {}", Bytes(*limit))?;
                }
                write!(f, "; {}.", self.refused)?;
            }
            Wanted::Claim(bytes) => write!(f, "tried to claim {} ({bytes} bytes); {}.", Bytes(*bytes), self.refused)?,
            Wanted::Addresses(bytes) => {
                return write!(
                    f,
                    "tried to reserve {} ({bytes} bytes) of addresses for {range}; {}. It is the process that has too few \
                     addresses: raise its limit of address space (ulimit -v, RLIMIT_AS)",
                    Bytes(*bytes),
                    self.refused
                );
            }
        }
        write!(f, " Free: {} of {}. Held by gpupool:", Bytes(self.free), Bytes(self.total))?;
        if self.users.is_empty() {
            f.write_str(" nothing")?;
        }
        for (index, MemoryUse { pool, count, bytes, live_bytes }) in self.users.iter().enumerate() {
            let (comma, s) = (if index > 0 { "," } else { "" }, if *count == 1 { "" } else { "s" });
            write!(f, "{comma} {pool} {}", Bytes(*bytes))?;
            match live_bytes {
                Some(live) => write!(f, " ({count} live block{s}, {})", Bytes(*live))?,
                None => write!(f, " ({count} handle{s})")?,
            }
        }
        let mut before = ". Held by other libraries of this process:";
        for MemoryHolder { name, bytes, .. } in self.holders.iter().filter(|holder| holder.bytes > 0) {
            write!(f, "{before} {} {}", OneLine(name), Bytes(*bytes))?;
            before = ",";
        }
        self.neighbours.iter().try_for_each(|neighbours| neighbours.fmt(f))?;
        f.write_str(self.advice())
    }
}

impl fmt::Display for AskedNeighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(refused) = &self.refused {
            write!(f, ". Its neighbours were not asked: {refused}")?;
        }
        let (answered, all) = (self.answered, self.answered + self.unanswered);
        if all > 0 {
            write!(
                f,
                ". Held by its neighbours, of which {answered} of {all} answered in {} ms:",
                self.took.as_millis()
            )?;
            if self.uses.is_empty() {
                f.write_str(" nothing")?;
            }
        }
        for (index, each) in self.uses.iter().enumerate() {
            let NeighbourUse { process, name, bytes, live_bytes, guarantee, claimed_bytes } = each;
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma} process {process} {name:?} {} ({} live", Bytes(*bytes), Bytes(*live_bytes))?;
            for (bytes, what) in [(*guarantee, "guaranteed"), (*claimed_bytes, "claimed")] {
                if bytes > 0 {
                    write!(f, ", {} {what}", Bytes(bytes))?;
                }
            }
            f.write_str(")")?;
        }
        if self.lost_claims > 0 {
            write!(
                f,
                ". Its own claims to {} are lost: it did not answer its neighbours in time, as if it was stopped, while one of \
                 them claimed memory",
                Bytes(self.lost_claims)
            )?;
        }
        Ok(())
    }
}

impl OutOfMemory {
    /// Returns the details of a refusal, with the device's free and total memory but not who holds it.
    pub(crate) fn new(refused: LibraryError, location: MemoryLocation, wanted: Wanted, free: u64, total: u64) -> Self {
        Self { refused, location, wanted, free, total, users: Vec::new(), holders: Vec::new(), neighbours: None }
    }

    /// Returns what to do, beyond what was done already.
    fn advice(&self) -> &'static str {
        match self.wanted {
            Wanted::Claim(_) => "",
            // A refusal of gpupool itself, for a limit, has its own advice: memory freed elsewhere would not help.
            _ if self.refused.library == GPUPOOL => "",
            _ if self.location.device().is_none() => {
                ". Free memory was released before the last attempt; free pinned memory, or request less"
            }
            _ if self.refused.library == OWN_ALLOCATOR => {
                ". Only that allocator supplies the pool: free live blocks of the pool, let the allocator supply more, or \
                 request less"
            }
            Wanted::Handle(_) => {
                ". Idle handles were destroyed before the last attempt; free memory elsewhere, such as the caches of CuPy \
                 (free_all_blocks) or PyTorch (torch.cuda.empty_cache), or warm the pool before they fill the device"
            }
            Wanted::Memory { .. } | Wanted::Addresses(_) => {
                ". Free memory of the default pool and of pools with use_on_oom was released before the last attempt; other \
                 pools keep their free memory until their trim(). Free memory elsewhere, such \
                 as the caches of CuPy (free_all_blocks) or PyTorch (torch.cuda.empty_cache), or request less"
            }
        }
    }
}

impl fmt::Display for PoolExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        write!(
            f,
            "no {} handle on {} after {:.1} s: all {} that the limit allows are in use, by",
            OneLine(&self.library),
            self.device,
            self.waited.as_secs_f64(),
            self.limit
        )?;
        for (index, holder) in self.holders.iter().take(SHOWN).enumerate() {
            write!(f, "{} {holder}", if index > 0 { "," } else { "" })?;
        }
        if self.holders.len() > SHOWN {
            write!(f, " and {} more", self.holders.len() - SHOWN)?;
        }
        f.write_str(
            ". A thread returns its handle when it ends, a lease when its block ends: use leases, raise the limit, or wait longer",
        )
    }
}

/// A name that a program gave, on one line whatever it contains.
pub(crate) struct OneLine<'a>(pub(crate) &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            // Not escaped, since quotes stand for themselves here.
            '\'' | '"' => write!(f, "{letter}"),
            _ => write!(f, "{}", letter.escape_debug()),
        })
    }
}

/// A number of bytes as a person reads it.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.0 as f64 / f64::from(1 << 20);
        if mib >= 1024.0 { write!(f, "{:.1} GiB", mib / 1024.0) } else { write!(f, "{mib:.1} MiB") }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.kind() {
            ErrorKind::Library(refused) => refused.cause.as_deref().map(|cause| cause as _),
            ErrorKind::OutOfMemory(out) => out.refused.cause.as_deref().map(|cause| cause as _),
            ErrorKind::Interrupted { cause, .. } => Some(cause.as_ref()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Error;

    #[test]
    fn a_fault_of_gpupools_own_asks_for_a_report() {
        let text = Error::internal("two and two are five").to_string();
        assert!(text.contains("two and two are five; please report it at https://"), "{text}");
    }
}
