//! Where neighbours listen, and how they find each other: by the sockets in a directory. It is the user's own, which nobody
//! else may enter; or one that containers share. Whoever finds a socket that no process listens to any more removes it.

use std::collections::VecDeque;
use std::env;
use std::fs::{self, DirEntry};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, Stat, fstat, mkdir, open, renameat, stat, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::process::geteuid;

use super::settings::environment;
use super::socket::{Contact, listener};
use crate::error::{Error, Result};
use crate::memory::device::wake;
use crate::process::{self, ListeningFor, close_in_children, is_own_user, peer_of};
use crate::sync::lock;

/// The start of the name of every neighbour's socket; the user's number and random digits follow.
const PREFIX: &str = "gpupool-neighbour-";
/// Where the system keeps what a user's processes share while they run.
const RUNTIME_FOLDER: &str = "XDG_RUNTIME_DIR";
/// A file of this name is not listened to yet. It becomes a socket's within microseconds.
const UNFINISHED: &str = ".new";
const NO_SOCKET: &str = "this process cannot be a neighbour of others: no socket";
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

    /// Returns the error of a process that cannot meet others here.
    #[cold]
    fn refused(&self, what: &str, error: &io::Error) -> Error {
        let advice = match self {
            Self::Own => {
                "Neighbours need a directory of this user's own, with mode 0700: XDG_RUNTIME_DIR says below which, by default \
                 /tmp; descriptors (ulimit -n), and Unix sockets with SO_PEERCRED, which a container's seccomp may refuse"
            }
            Self::Folder(_) => {
                "GPUPOOL_NEIGHBOURS names a directory that exists, and that may be read and written to; descriptors (ulimit -n) \
                 and Unix sockets with SO_PEERCRED (seccomp) are needed as well"
            }
        };
        Error::unavailable(format!("{what} in {:?}: {error}. {advice}", self.folder()))
    }

    /// Opens a socket of this name, and returns it with what the system says of its file.
    fn listen(&self, name: &str) -> io::Result<(OwnedFd, Stat)> {
        if *self == Self::Own {
            match mkdir(self.folder(), Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let open = self.open()?;
        // Nobody may find it before it is listened to, and take it for one that was left.
        let unfinished = format!("{name}{UNFINISHED}");
        let listener = listener(&open.address(&unfinished)?)?;
        let about = statat(&open.0, &unfinished, AtFlags::SYMLINK_NOFOLLOW)?;
        renameat(&open.0, unfinished, &open.0, name)?;
        Ok((listener, about))
    }

    /// Opens the directory to look for the user's other sockets; none if no neighbour has made it yet.
    pub(super) fn look(&self) -> io::Result<Option<OpenPlace>> {
        match self.open() {
            Err(error) if *self == Self::Own && error.kind() == io::ErrorKind::NotFound => Ok(None),
            open => open.map(Some),
        }
    }
}

/// Where this process listens.
#[derive(Debug)]
pub(super) struct Listening {
    place: Place,
    name: String,
    /// With what the system says of its file.
    socket: Mutex<(Arc<OwnedFd>, Stat)>,
}

/// Where this process listens, once it is a neighbour.
static MEMBERSHIP: OnceLock<Listening> = OnceLock::new();

/// Returns where this process listens; none if it is no neighbour.
pub(super) fn membership() -> Option<&'static Listening> {
    MEMBERSHIP.get().filter(|_| !process::is_forked())
}

impl Listening {
    /// # Errors
    /// `ErrorKind::Unavailable` if there can be no socket, or the system does not tell who connects: a neighbour compares users, so
    /// it could be asked nothing.
    pub(super) fn begin(place: Place, name: String) -> Result<Self> {
        let listen = || {
            let (listener, about) = place.listen(&name)?;
            peer_of(listener.as_fd())?;
            Ok((Arc::new(listener), about))
        };
        let socket = listen().map_err(|error| place.refused(NO_SOCKET, &error))?;
        Ok(Self { place, name, socket: Mutex::new(socket) })
    }

    pub(super) fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&lock(&self.socket).0)
    }

    /// Listens anew if the name is not its socket's any more: whoever cleans the directory may have removed it, and then
    /// no neighbour would find this process again.
    pub(super) fn stay_to_be_found(&self) -> io::Result<()> {
        let mut socket = lock(&self.socket);
        match self.place.open().and_then(|open| Ok(statat(&open.0, &self.name, AtFlags::SYMLINK_NOFOLLOW)?)) {
            Ok(found) if (found.st_dev, found.st_ino) == (socket.1.st_dev, socket.1.st_ino) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let (listener, about) = self.place.listen(&self.name)?;
        close_in_children(ListeningFor::Neighbours, listener.as_raw_fd());
        *socket = (Arc::new(listener), about);
        wake();
        Ok(())
    }

    /// Makes the process one that answers here from now on, unless it has another place.
    pub(super) fn begin_to_answer(self) {
        let listening = MEMBERSHIP.get_or_init(|| self);
        // Forked children answer nobody.
        close_in_children(ListeningFor::Neighbours, listening.socket().as_raw_fd());
        wake();
    }
}

/// What came of connecting to a neighbour, or of asking it.
#[derive(Debug)]
pub(super) enum Reached {
    Connected(Contact),
    /// Too many others wait for it.
    Busy,
    /// Nobody of this user listens there any more.
    Nobody,
}

/// The directory of a place while it is open.
#[derive(Debug)]
pub(super) struct OpenPlace(OwnedFd);

impl OpenPlace {
    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    fn address(&self, name: &str) -> io::Result<SocketAddrUnix> {
        Ok(SocketAddrUnix::new(self.path().join(name))?)
    }

    /// Returns the names of the user's other sockets. What else has such a name is another user's, who may have made any
    /// number of them, or something that must not be opened.
    pub(super) fn others(&self, own: &str) -> io::Result<VecDeque<String>> {
        let prefix = own_prefix();
        let is_own_socket = |entry: &DirEntry| {
            entry.metadata().is_ok_and(|about| about.file_type().is_socket() && is_own_user(about.uid()))
        };
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path())? {
            let entry = entry?;
            let name = entry.file_name().into_string();
            names.extend(name.ok().filter(|name| name.starts_with(&prefix) && name != own && is_own_socket(&entry)));
        }
        let (unfinished, finished): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name.ends_with(UNFINISHED));
        remove_unfinished(&self.path(), &unfinished);
        Ok(finished.into())
    }

    /// Connects to a neighbour. Removes what an ended one has left.
    ///
    /// # Errors
    /// What keeps this process from connecting, whoever listens.
    pub(super) fn connect(&self, name: &str) -> io::Result<Reached> {
        match Contact::to(&self.address(name)?) {
            Ok(contact) if contact.peer.is_of_own_user() => Ok(Reached::Connected(contact)),
            Ok(_) => Ok(Reached::Nobody),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::INTR) => Ok(Reached::Busy),
                Some(Errno::CONNREFUSED) => {
                    self.remove(name);
                    Ok(Reached::Nobody)
                }
                // The last one: a socket of another kind, of some other program.
                Some(Errno::NOENT | Errno::PROTOTYPE) => Ok(Reached::Nobody),
                _ => Err(error),
            },
        }
    }

    /// Removes what an ended neighbour has left. No other process ever has its name.
    pub(super) fn remove(&self, name: &str) {
        // Another one may have been faster.
        let _ = unlinkat(&self.0, name, AtFlags::empty());
    }
}

/// Removes the files of processes that ended before they listened.
fn remove_unfinished(folder: &Path, names: &[String]) {
    for path in names.iter().map(|name| folder.join(name)) {
        let age = fs::metadata(&path).and_then(|about| about.modified()).map(|made| made.elapsed().unwrap_or_default());
        if age.is_ok_and(|age| age > UNFINISHED_FOR) {
            let _ = fs::remove_file(path);
        }
    }
}

/// All neighbours but this process, which need not be one: it may look at them where the environment says that they meet.
#[derive(Debug)]
pub(super) struct Others {
    /// None if there are none.
    pub(super) open: Option<OpenPlace>,
    pub(super) names: VecDeque<String>,
    place: &'static Place,
}

/// Looks for all neighbours but this process, and sees to it that they find this one.
///
/// # Errors
/// `ErrorKind::InvalidValue` if a variable of the environment is wrong; `ErrorKind::Unavailable` if the system does not tell
/// who is there.
pub(super) fn others() -> Result<Others> {
    let (place, own) = match membership() {
        Some(own) => {
            own.stay_to_be_found().map_err(|error| own.place.refused(NO_SOCKET, &error))?;
            (&own.place, own.name.as_str())
        }
        None => (environment()?.place.as_ref().unwrap_or(&Place::Own), ""),
    };
    let look = || {
        let open = place.look()?;
        let names = open.as_ref().map(|open| open.others(own)).transpose()?.unwrap_or_default();
        Ok(Others { open, names, place })
    };
    look().map_err(|error| place.refused("no neighbours can be found", &error))
}

impl Others {
    /// Returns the error of one that cannot be asked, whoever that is.
    #[cold]
    pub(super) fn cannot_be_asked(&self, error: &io::Error) -> Error {
        Error::unavailable(format!(
            "not all neighbours in {:?} can be asked: {error}. Let the process open more descriptors (ulimit -n), and its \
             container allow Unix sockets and SO_PEERCRED (seccomp)",
            self.place.folder()
        ))
    }
}
