//! Where neighbours listen, and how they find each other: by the sockets in a directory. It is the user's own, which nobody
//! else may enter; or one that containers share. Whoever finds a socket that no process listens to any more removes it.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, DirEntry};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, fstat, mkdir, open, renameat, stat, unlinkat};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::process::geteuid;

use crate::memory::share::{connected_to, listener_at};
use crate::process::is_own_user;

/// The start of the name of every neighbour's socket; the user's number and random digits follow.
const PREFIX: &str = "gpupool-neighbour-";
/// Where the system keeps what a user's processes share while they run.
const RUNTIME_FOLDER: &str = "XDG_RUNTIME_DIR";
/// A file of this name is not listened to yet. It becomes a socket's within microseconds.
const UNFINISHED: &str = ".new";
const UNFINISHED_FOR: Duration = Duration::from_secs(0x3c);

/// Where neighbours meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// The user's own directory, which is made where it is missing.
    Own,
    /// A directory that containers share.
    Folder(PathBuf),
}

/// Returns the start of the names of this user's sockets.
fn own_prefix() -> String {
    format!("{PREFIX}{}-", geteuid().as_raw())
}

pub(super) fn name(random: [u8; 16]) -> String {
    format!("{}{:032x}", own_prefix(), u128::from_be_bytes(random))
}

impl Place {
    /// Returns the directory: below that of `XDG_RUNTIME_DIR` if that is the user's, else below `/tmp`.
    pub(super) fn folder(&self) -> PathBuf {
        match self {
            Self::Folder(folder) => folder.clone(),
            Self::Own => {
                let is_own = |folder: &PathBuf| stat(folder).is_ok_and(|about| is_own_user(about.st_uid));
                let runtime = env::var_os(RUNTIME_FOLDER).map(PathBuf::from).filter(is_own);
                let of_user = || format!("/tmp/gpupool-{}", geteuid().as_raw()).into();
                runtime.map_or_else(of_user, |folder| folder.join("gpupool"))
            }
        }
    }

    /// Opens the directory: its path may be longer than that of a socket, and may lead elsewhere later.
    fn open(&self) -> io::Result<OpenPlace> {
        let folder = self.folder();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if matches!(self, Self::Folder(_)) {
            return Ok(OpenPlace(open(&folder, flags, Mode::empty())?));
        }
        let open = open(&folder, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let about = fstat(&open)?;
        if !is_own_user(about.st_uid) || Mode::from_raw_mode(about.st_mode).intersects(Mode::RWXG | Mode::RWXO) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "others may enter it, or it is another user's",
            ));
        }
        Ok(OpenPlace(open))
    }

    pub(super) fn listen(&self, name: &str) -> io::Result<OwnedFd> {
        if *self == Self::Own {
            match mkdir(self.folder(), Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let open = self.open()?;
        // Nobody may find it before it is listened to, and take it for one that was left.
        let unfinished = format!("{name}{UNFINISHED}");
        let listener = listener_at(&open.address(&unfinished)?)?;
        renameat(&open.0, unfinished, &open.0, name)?;
        Ok(listener)
    }

    /// Connects to the user's other sockets, but for those that too many others wait for.
    pub(super) fn connect_to_others(&self, own: &str) -> io::Result<Vec<OwnedFd>> {
        let open = match self.open() {
            // The first neighbour makes it.
            Err(error) if *self == Self::Own && error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            open => open?,
        };
        Ok(open.others(own)?.into_iter().filter_map(|name| open.connect(&name).ok()).collect())
    }
}

/// The directory of a place while it is open.
struct OpenPlace(OwnedFd);

impl OpenPlace {
    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    fn address(&self, name: &str) -> io::Result<SocketAddrUnix> {
        Ok(SocketAddrUnix::new(self.path().join(name))?)
    }

    /// Returns the names of the user's other sockets.
    fn others(&self, own: &str) -> io::Result<BTreeSet<String>> {
        let prefix = own_prefix();
        let name = |entry: DirEntry| entry.file_name().into_string().ok();
        let entries = fs::read_dir(self.path())?.flatten().filter_map(name);
        let names: BTreeSet<_> = entries.filter(|name| name.starts_with(&prefix) && name != own).collect();
        let (unfinished, finished) = names.into_iter().partition(|name| name.ends_with(UNFINISHED));
        remove_unfinished(&self.path(), unfinished);
        Ok(finished)
    }

    /// Connects to a neighbour. Removes what an ended one has left.
    fn connect(&self, name: &str) -> io::Result<OwnedFd> {
        let connected = connected_to(&self.address(name)?);
        if connected.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            // Another one may have been faster.
            let _ = unlinkat(&self.0, name, AtFlags::empty());
        }
        connected
    }
}

/// Removes the files of processes that ended before they listened.
fn remove_unfinished(folder: &Path, names: BTreeSet<String>) {
    for path in names.iter().map(|name| folder.join(name)) {
        let age = fs::metadata(&path).and_then(|about| about.modified()).map(|made| made.elapsed().unwrap_or_default());
        if age.is_ok_and(|age| age > UNFINISHED_FOR) {
            let _ = fs::remove_file(path);
        }
    }
}
