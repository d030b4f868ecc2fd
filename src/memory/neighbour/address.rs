//! Where neighbours listen, and how they find each other. On one machine their sockets' names are in no file system, and
//! the system lists those that exist. In containers, which share a directory but no network, the sockets are files there;
//! whoever finds one that no process listens to any more removes it.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::SocketAddrUnix;
use rustix::process::geteuid;

use crate::memory::share::{connected_to, listener_at};

/// The start of the name of every neighbour's socket; the user's number and random digits follow.
const PREFIX: &str = "gpupool-neighbour-";
/// The system's list of sockets.
const SOCKETS: &str = "/proc/net/unix";
/// A file of this name is not listened to yet. It becomes a socket's within microseconds.
const UNFINISHED: &str = ".new";
const UNFINISHED_FOR: Duration = Duration::from_secs(0x3c);

/// Where neighbours meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// On this machine, in one network namespace.
    Machine,
    /// In a directory.
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
    /// Opens the place. A directory stays open, so that its path may be longer than that of a socket.
    fn open(&self) -> io::Result<OpenPlace<'_>> {
        Ok(match self {
            Self::Machine => OpenPlace::Machine,
            Self::Folder(folder) => OpenPlace::Folder(folder, File::open(folder)?),
        })
    }

    pub(super) fn listen(&self, name: &str) -> io::Result<OwnedFd> {
        let open = self.open()?;
        let Self::Folder(folder) = self else { return listener_at(&open.address(name)?) };
        // Nobody may find it before it is listened to, and take it for one that was left.
        let unfinished = format!("{name}{UNFINISHED}");
        let listener = listener_at(&open.address(&unfinished)?)?;
        fs::rename(folder.join(unfinished), folder.join(name))?;
        Ok(listener)
    }

    /// Returns the names of the user's other sockets.
    fn others(&self, own: &str) -> io::Result<Vec<String>> {
        let prefix = own_prefix();
        let mut found = match self {
            Self::Machine => names_in(&fs::read_to_string(SOCKETS)?, &prefix),
            Self::Folder(folder) => {
                let entries = fs::read_dir(folder)?.flatten();
                let name = |entry: DirEntry| entry.file_name().into_string().ok();
                let names: BTreeSet<_> = entries.filter_map(name).filter(|name| name.starts_with(&prefix)).collect();
                let (unfinished, finished) = names.into_iter().partition(|name| name.ends_with(UNFINISHED));
                remove_unfinished(folder, unfinished);
                finished
            }
        };
        found.remove(own);
        Ok(found.into_iter().collect())
    }

    /// Connects to the user's other sockets, but for those that too many others wait for.
    pub(super) fn connect_to_others(&self, own: &str) -> io::Result<Vec<OwnedFd>> {
        let open = self.open()?;
        Ok(self.others(own)?.into_iter().filter_map(|name| open.connect(&name).ok()).collect())
    }
}

/// A place while it is open.
enum OpenPlace<'a> {
    Machine,
    Folder(&'a Path, File),
}

impl OpenPlace<'_> {
    fn address(&self, name: &str) -> io::Result<SocketAddrUnix> {
        Ok(match self {
            Self::Machine => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
            Self::Folder(_, open) => SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", open.as_raw_fd()))?,
        })
    }

    /// Connects to a neighbour. Removes what an ended one has left.
    fn connect(&self, name: &str) -> io::Result<OwnedFd> {
        let connected = connected_to(&self.address(name)?);
        if let Self::Folder(folder, _) = self
            && connected.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        {
            // Another one may have been faster.
            let _ = fs::remove_file(folder.join(name));
        }
        connected
    }
}

/// Returns the names that the system's list has with this prefix, each once: connections have the same as their listener.
fn names_in(list: &str, prefix: &str) -> BTreeSet<String> {
    let name = |line: &str| line.rsplit_once('@').map(|(_, name)| name.to_owned());
    list.lines().filter_map(name).filter(|name| name.starts_with(prefix)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_the_systems_list() {
        let list = "Num RefCount Protocol Flags Type St Inode Path\n\
                    0: 2 0 00010000 0005 01 7 @gpupool-neighbour-5-aa\n\
                    1: 3 0 00000000 0005 03 8 @gpupool-neighbour-5-aa\n\
                    2: 3 0 00000000 0005 03 9 @gpupool-neighbour-55-cc\n\
                    3: 3 0 00000000 0001 03 9 /run/gpupool-neighbour-5-dd\n\
                    4: 3 0 00000000 0001 03 9\n";
        assert_eq!(names_in(list, "gpupool-neighbour-5-").into_iter().collect::<Vec<_>>(), ["gpupool-neighbour-5-aa"]);
    }
}
