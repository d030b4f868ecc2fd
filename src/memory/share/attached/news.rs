//! What a process tells the owner of blocks of its mappings, and hears of blocks that are gone: one connection to each owner,
//! open as long as anything of it is mapped.
//!
//! Nothing here waits but the opening, which a call of `attach` does.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use crate::memory::share::socket;
use crate::memory::share::wire::{Request, read_gone};
use crate::sync::lock;

/// The connection.
#[derive(Debug)]
pub(in crate::memory::share) struct News {
    /// The owner's name.
    pub(super) owner: [u8; 16],
    socket: OwnedFd,
    /// Tells of the owner's end, also where a child of it keeps the socket.
    pidfd: OwnedFd,
    /// What there was no room for yet.
    unsaid: Mutex<VecDeque<Request>>,
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Said {
    Now,
    /// There is no room for it; it is to be said again.
    NotYet,
    /// The connection is over.
    Never,
}

impl News {
    pub(super) fn new(owner: [u8; 16], socket: OwnedFd, pidfd: OwnedFd) -> Self {
        Self { owner, socket, pidfd, unsaid: Mutex::default() }
    }

    pub(in crate::memory::share) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(in crate::memory::share) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Says something at once, if there is room.
    pub(super) fn say(&self, request: &Request) -> Said {
        match socket::send(self.socket.as_fd(), &request.to_bytes(), &[]) {
            Ok(true) => Said::Now,
            Ok(false) => Said::NotYet,
            Err(_) => Said::Never,
        }
    }

    /// Says something as soon as there is room.
    pub(super) fn say_in_time(&self, request: Request) {
        lock(&self.unsaid).push_back(request);
        self.go_on();
    }

    /// Says what there is room for of what is to be said.
    pub(in crate::memory::share) fn go_on(&self) {
        let mut unsaid = lock(&self.unsaid);
        while let Some(request) = unsaid.front() {
            match self.say(request) {
                Said::NotYet => return,
                // Where the connection is over there is nothing to say.
                Said::Now | Said::Never => unsaid.pop_front(),
            };
        }
    }

    /// Returns whether there was no room for something.
    pub(in crate::memory::share) fn is_behind(&self) -> bool {
        !lock(&self.unsaid).is_empty()
    }

    /// Returns the numbers of mappings that are to end; an error once the connection is over.
    pub(super) fn hear(&self) -> Result<Vec<u64>, Over> {
        let mut all = Vec::new();
        loop {
            match socket::receive(self.socket.as_fd()) {
                Ok(None) => return Ok(all),
                // Its end and rubbish are none.
                Ok(Some(packet)) => all.extend(read_gone(&packet.bytes).ok_or(Over)?),
                Err(_) => return Err(Over),
            }
        }
    }
}

/// The connection is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Over;
