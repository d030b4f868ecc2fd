//! The system's means for processes that share memory: packets over Unix sockets, with descriptors, and pidfds, which
//! become ready when a process ends. The sockets' names are in no file system, so an ended process leaves nothing
//! behind. Nothing here waits except [`is_ready`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, shutdown, socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::wire::{DESCRIPTORS, PACKET};

fn new() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn address(name: &[u8; 16]) -> io::Result<SocketAddrUnix> {
    let name = format!("gpupool-share-{:032x}", u128::from_be_bytes(*name));
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

pub(super) fn listener(name: &[u8; 16]) -> io::Result<OwnedFd> {
    listener_at(&address(name)?)
}

pub(in crate::memory) fn listener_at(address: &SocketAddrUnix) -> io::Result<OwnedFd> {
    let socket = new()?;
    // One in a directory is its user's alone, whatever the umask. A sandbox may not know of this.
    let _ = fchmod(&socket, Mode::RUSR | Mode::WUSR);
    bind(&socket, address)?;
    listen(&socket, libc::SOMAXCONN)?;
    Ok(socket)
}

/// Connects to the process that listens under a name; `WouldBlock` while too many others wait to be accepted.
pub(super) fn connected(name: &[u8; 16]) -> io::Result<OwnedFd> {
    connected_to(&address(name)?)
}

pub(in crate::memory) fn connected_to(address: &SocketAddrUnix) -> io::Result<OwnedFd> {
    let socket = new()?;
    connect(&socket, address)?;
    Ok(socket)
}

/// Accepts a connecting process, if there is one.
pub(in crate::memory) fn accepted(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends a packet, or returns false if there is no room for it now.
pub(in crate::memory) fn send(socket: impl AsFd, packet: &[u8], descriptors: &[OwnedFd]) -> io::Result<bool> {
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
pub(in crate::memory) struct Packet {
    pub(in crate::memory) bytes: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
    /// Whether descriptors were lost, since this process may have no more.
    pub(super) is_cut: bool,
}

/// Receives a packet, if there is one. An empty one is the end.
pub(in crate::memory) fn receive(socket: impl AsFd) -> io::Result<Option<Packet>> {
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
pub(super) fn receive_last(socket: &OwnedFd) -> io::Result<Option<Packet>> {
    shutdown(socket, Shutdown::Read)?;
    receive(socket)
}

/// Returns a descriptor that is ready to be read once a process ends; `ESRCH` if it has, or cannot be seen.
pub(in crate::memory) fn pidfd(process: i32) -> rustix::io::Result<OwnedFd> {
    pidfd_open(Pid::from_raw(process).ok_or(Errno::SRCH)?, PidfdFlags::empty())
}

/// Returns whether a descriptor is ready to be read, or becomes so within a time.
pub(in crate::memory) fn is_ready(descriptor: &OwnedFd, within: Duration) -> bool {
    poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&timespec(within))).is_ok_and(|ready| ready > 0)
}

/// Returns a duration as `poll` takes it.
pub(in crate::memory) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::share::token::random;

    #[test]
    #[cfg_attr(miri, ignore = "Miri passes no descriptors")]
    fn packets_and_descriptors_arrive_whole() -> io::Result<()> {
        let name = random().map_err(io::Error::other)?;
        let listener = listener(&name)?;
        assert!(accepted(&listener)?.is_none());
        let one = connected(&name)?;
        let other = accepted(&listener)?.ok_or(io::ErrorKind::NotFound)?;
        assert!(receive(&other)?.is_none());
        assert!(send(&one, b"first", &[listener.try_clone()?])?);
        assert!(send(&one, b"second", &[])?);
        let first = receive(&other)?.ok_or(io::ErrorKind::NotFound)?;
        assert_eq!((first.bytes.as_slice(), first.descriptors.len(), first.is_cut), (&b"first"[..], 1, false));
        let second = receive(&other)?.ok_or(io::ErrorKind::NotFound)?;
        assert_eq!((second.bytes.as_slice(), second.descriptors.len()), (&b"second"[..], 0));
        drop(one);
        assert!(receive(&other)?.ok_or(io::ErrorKind::NotFound)?.bytes.is_empty());
        // Closed with something unread: what was sent before still comes.
        let one = connected(&name)?;
        let other = accepted(&listener)?.ok_or(io::ErrorKind::NotFound)?;
        assert!(send(&one, b"last", &[])? && send(&other, b"unread", &[])?);
        drop(one);
        assert!(receive(&other)?.is_none());
        assert_eq!(receive(&other)?.ok_or(io::ErrorKind::NotFound)?.bytes, b"last");
        assert!(receive(&other)?.ok_or(io::ErrorKind::NotFound)?.bytes.is_empty());
        // Nothing is lost where one end takes no more: the other cannot send what is not received.
        let one = connected(&name)?;
        let other = accepted(&listener)?.ok_or(io::ErrorKind::NotFound)?;
        assert!(send(&one, b"in time", &[])?);
        assert_eq!(receive_last(&other)?.ok_or(io::ErrorKind::NotFound)?.bytes, b"in time");
        assert!(send(&one, b"too late", &[]).is_err());
        assert!(receive_last(&other)?.ok_or(io::ErrorKind::NotFound)?.bytes.is_empty());
        // The received descriptor is of the same listener.
        drop((listener, first));
        assert!(connected(&name).is_err());
        Ok(())
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no abstract sockets")]
    fn a_packet_that_is_too_large_is_refused() -> io::Result<()> {
        let name = random().map_err(io::Error::other)?;
        let listener = listener(&name)?;
        let one = connected(&name)?;
        let other = accepted(&listener)?.ok_or(io::ErrorKind::NotFound)?;
        assert!(send(&one, &vec![1; PACKET + 1], &[])?);
        assert!(receive(&other).is_err());
        Ok(())
    }
}
