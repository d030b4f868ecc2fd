//! The system's means for processes that talk: packets over Unix sockets, with descriptors, and pidfds, which become ready when
//! a process ends. Nothing here waits except [`is_ready`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, shutdown, socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::codec::{DESCRIPTORS, Message, PACKET};
use crate::process::{Peer, peer_of};

/// Returns the address of a name that is in no file system, so that an ended process leaves nothing behind.
pub(super) fn abstract_address(name: &[u8; 16]) -> io::Result<SocketAddrUnix> {
    let name = format!("gpupool-share-{:032x}", u128::from_be_bytes(*name));
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

fn new() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

pub(super) fn listener(address: &SocketAddrUnix) -> io::Result<OwnedFd> {
    let socket = new()?;
    // One in a directory is its user's alone, whatever the umask. A sandbox may not know of this.
    let _ = fchmod(&socket, Mode::RUSR | Mode::WUSR);
    bind(&socket, address)?;
    listen(&socket, libc::SOMAXCONN)?;
    Ok(socket)
}

/// A process at the other end of a connection.
#[derive(Debug)]
pub(super) struct Contact {
    pub(super) socket: OwnedFd,
    pub(super) peer: Peer,
}

impl Contact {
    /// Connects to the process that listens; `WouldBlock` while too many others wait to be accepted.
    pub(super) fn to(address: &SocketAddrUnix) -> io::Result<Self> {
        let socket = new()?;
        connect(&socket, address)?;
        let peer = peer_of(socket.as_fd())?;
        Ok(Self { socket, peer })
    }

    /// Accepts a connecting process, if there is one.
    pub(super) fn accepted(listener: impl AsFd) -> io::Result<Option<Self>> {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => {
                let peer = peer_of(socket.as_fd())?;
                Ok(Some(Self { socket, peer }))
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sends a message, or returns false if there is no room for it now.
pub(super) fn send(socket: impl AsFd, message: &impl Message, descriptors: &[OwnedFd]) -> io::Result<bool> {
    send_packet(socket, &message.to_packet(), descriptors)
}

fn send_packet(socket: impl AsFd, packet: &[u8], descriptors: &[OwnedFd]) -> io::Result<bool> {
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !along.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    match sendmsg(socket, &[IoSlice::new(packet)], &mut along, SendFlags::NOSIGNAL) {
        Ok(sent) if sent == packet.len() => Ok(true),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        // The last one: more descriptors of this user are in flight than it may have open.
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::TOOMANYREFS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[derive(Debug)]
pub(super) struct Packet {
    pub(super) bytes: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
    /// Whether descriptors were lost, since this process may have no more.
    pub(super) is_cut: bool,
}

/// Receives a packet, if there is one. An empty one is the end.
pub(super) fn receive(socket: impl AsFd) -> io::Result<Option<Packet>> {
    let mut bytes = vec![0; PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut along, RecvFlags::CMSG_CLOEXEC);
    let received = match received {
        Ok(received) => received,
        // The last one: the other end was closed with unread data. What it sent before is still to come, and then the
        // end.
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNRESET) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut descriptors = Vec::new();
    for message in along.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    bytes.truncate(received.bytes);
    Ok(Some(Packet { bytes, descriptors, is_cut: received.flags.contains(ReturnFlags::CTRUNC) }))
}

/// Lets the other end send no more packets, which sees that, and receives what it had sent, packet by packet; in the end an
/// empty one.
pub(super) fn receive_last(socket: impl AsFd) -> io::Result<Option<Packet>> {
    shutdown(&socket, Shutdown::Read)?;
    receive(socket)
}

/// Returns a descriptor that is ready to be read once a process ends; `ESRCH` if it has, or cannot be seen.
pub(super) fn pidfd(process: i32) -> rustix::io::Result<OwnedFd> {
    pidfd_open(Pid::from_raw(process.max(0)).ok_or(Errno::SRCH)?, PidfdFlags::empty())
}

/// Returns whether a process has ended, or is none that this one can see; false where the system does not tell.
pub(super) fn has_ended(process: i32) -> bool {
    match pidfd(process) {
        Ok(pidfd) => is_ready(&pidfd, Duration::ZERO),
        Err(error) => error == Errno::SRCH,
    }
}

/// Returns whether a descriptor is ready to be read, or becomes so within a time, whatever signals come.
pub(super) fn is_ready(descriptor: impl AsFd, within: Duration) -> bool {
    let begun = Instant::now();
    loop {
        let left = timespec(within.saturating_sub(begun.elapsed()));
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            outcome => return outcome.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Returns a duration as `poll` takes it.
pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::shared_block::random;

    struct Pair {
        one: OwnedFd,
        other: OwnedFd,
    }

    fn meeting() -> io::Result<(SocketAddrUnix, OwnedFd)> {
        let address = abstract_address(&random().map_err(io::Error::other)?)?;
        let listener = listener(&address)?;
        Ok((address, listener))
    }

    fn pair(address: &SocketAddrUnix, listener: &OwnedFd) -> io::Result<Pair> {
        let one = Contact::to(address)?;
        let other = Contact::accepted(listener)?.ok_or(io::ErrorKind::NotFound)?;
        assert!(one.peer.is_of_own_user() && one.peer == other.peer);
        Ok(Pair { one: one.socket, other: other.socket })
    }

    fn bytes(packet: io::Result<Option<Packet>>) -> io::Result<Vec<u8>> {
        Ok(packet?.ok_or(io::ErrorKind::NotFound)?.bytes)
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri passes no descriptors")]
    fn packets_and_descriptors_arrive_whole() -> io::Result<()> {
        let (address, listener) = meeting()?;
        assert!(Contact::accepted(&listener)?.is_none());
        let Pair { one, other } = pair(&address, &listener)?;
        assert!(receive(&other)?.is_none());
        assert!(send_packet(&one, b"first", &[listener.try_clone()?])?);
        assert!(send_packet(&one, b"second", &[])?);
        let first = receive(&other)?.ok_or(io::ErrorKind::NotFound)?;
        assert_eq!((first.bytes.as_slice(), first.descriptors.len(), first.is_cut), (&b"first"[..], 1, false));
        let second = receive(&other)?.ok_or(io::ErrorKind::NotFound)?;
        assert_eq!((second.bytes.as_slice(), second.descriptors.len()), (&b"second"[..], 0));
        drop(one);
        assert!(bytes(receive(&other))?.is_empty());
        // Closed with something unread: what was sent before still comes.
        let Pair { one, other } = pair(&address, &listener)?;
        assert!(send_packet(&one, b"last", &[])? && send_packet(&other, b"unread", &[])?);
        drop(one);
        assert!(receive(&other)?.is_none());
        assert_eq!(bytes(receive(&other))?, b"last");
        assert!(bytes(receive(&other))?.is_empty());
        // Nothing is lost where one end takes no more: the other cannot send what is not received.
        let Pair { one, other } = pair(&address, &listener)?;
        assert!(send_packet(&one, b"in time", &[])?);
        assert_eq!(bytes(receive_last(&other))?, b"in time");
        assert!(send_packet(&one, b"too late", &[]).is_err());
        assert!(bytes(receive_last(&other))?.is_empty());
        // The received descriptor is of the same listener.
        drop((listener, first));
        assert!(Contact::to(&address).is_err());
        Ok(())
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no abstract sockets")]
    fn a_packet_that_is_too_large_is_refused() -> io::Result<()> {
        let (address, listener) = meeting()?;
        let Pair { one, other } = pair(&address, &listener)?;
        assert!(send_packet(&one, &vec![1; PACKET + 1], &[])?);
        assert!(receive(&other).is_err());
        Ok(())
    }
}
