//! A process that is connected to this one: it asks, and is answered, one question after the other, and nothing here waits. A
//! process that takes too long, or sends anything else, is disconnected. What it asks is handled where blocks are shared
//! (`sharing.rs`), or where memory is given (`giving.rs`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::codec::{Answer, Message, Question};
use super::giving;
use super::sharing::{Borrower, let_go};
use super::socket::{self, Contact};
use crate::memory::tuning::{PATIENCE, RETRY_MOST};

/// An answer that waits for room.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) answer: Answer,
    pub(super) descriptors: Vec<OwnedFd>,
    /// The block that the process holds once it has this answer.
    pub(super) held: Option<u64>,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { answer, descriptors: Vec::new(), held: None }
    }
}

/// What comes of a question.
#[derive(Debug)]
pub(super) enum Handled {
    Reply(Reply),
    /// It asks for nothing, or another thread answers it.
    Unanswered,
    /// No process that keeps to the rules asks so.
    Wrong,
}

/// By which of the two places a process has come: what it may ask is asked there alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entrance {
    /// The name that tokens tell: anybody who sees it may come, so secrets are asked for.
    Name,
    /// The folder of neighbours: who can enter it is one, and is sent no descriptor.
    Folder,
}

/// How long a connection may stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stay {
    /// As long as the process has held something by it.
    WhileKnown,
    /// For what is asked at once, as it has the descriptor to spare: what the process holds is told from its end.
    Shortly,
}

#[derive(Debug)]
pub(super) struct Connection {
    entrance: Entrance,
    stay: Stay,
    /// Another thread knows it while that is to answer.
    socket: Arc<OwnedFd>,
    /// What the process has of this one's memory by this connection.
    pub(super) borrower: Borrower,
    reply: Option<Reply>,
    /// When it is disconnected, if it has shown no token, a reply waits for room, or it stays shortly.
    until: Instant,
}

impl Connection {
    /// Makes one for a process that has connected, if it is this user's.
    pub(super) fn new(Contact { socket, peer }: Contact, entrance: Entrance, stay: Stay) -> Option<Self> {
        peer.is_of_own_user().then(|| Self {
            entrance,
            stay,
            socket: Arc::new(socket),
            borrower: Borrower::new(peer.process),
            reply: None,
            until: Instant::now() + if stay == Stay::Shortly { RETRY_MOST } else { PATIENCE },
        })
    }

    /// Returns whether the process holds nothing by it, nor ever did: it may be ended for others.
    pub(super) const fn is_of_a_stranger(&self) -> bool {
        !self.borrower.is_known()
    }

    /// Returns whether an answer waits for room.
    pub(super) const fn is_answering(&self) -> bool {
        self.reply.is_some()
    }

    /// Returns whether another thread answers.
    pub(super) fn is_answered_elsewhere(&self) -> bool {
        Arc::weak_count(&self.socket) > 0
    }

    /// Returns when it is to go on at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let is_limited = self.is_of_a_stranger() || self.is_answering() || self.stay == Stay::Shortly;
        (is_limited && !self.is_answered_elsewhere()).then_some(self.until)
    }

    /// Ends it by then, unless it is to end sooner.
    pub(super) fn hurry(&mut self, until: Instant) {
        self.until = self.until.min(until);
    }

    /// Returns what to wait for: its end at least.
    pub(super) fn polled(&self) -> PollFd<'_> {
        let is_busy = self.is_answering() || self.is_answered_elsewhere();
        PollFd::from_borrowed_fd(self.socket.as_fd(), if is_busy { PollFlags::empty() } else { PollFlags::IN })
    }

    /// Notifies the process of mappings that are to end; false where there was no room for all.
    pub(super) fn notify(&mut self) -> bool {
        self.is_answering() || self.borrower.notify(&self.socket)
    }

    /// Does what it can without waiting: sends, or receives if the socket is ready. False once the connection is over:
    /// closed, of a process that has ended, or of one that has taken too long.
    pub(super) fn go_on(&mut self, is_ready: bool, ended: &[i32]) -> bool {
        let goes_on = if self.is_answering() {
            self.send()
        } else if self.is_answered_elsewhere() {
            // Nothing but its end is waited for.
            !is_ready
        } else {
            !is_ready || self.receive()
        };
        let is_late = self.deadline().is_some_and(|deadline| deadline <= Instant::now());
        goes_on && !is_late && !self.borrower.is_one_of(ended)
    }

    fn receive(&mut self) -> bool {
        match socket::receive(&self.socket) {
            Ok(None) => true,
            // Neither the end nor garbage is a question.
            Ok(Some(packet)) => Question::from_packet(&packet.bytes).is_some_and(|question| self.handle(question)),
            Err(_) => false,
        }
    }

    /// Handles a question; false if the connection is to be closed.
    fn handle(&mut self, question: Question) -> bool {
        let handled = match (self.entrance, question) {
            (Entrance::Name, Question::OfBlock(key, question)) => self.borrower.handle(key, question),
            (Entrance::Name, Question::Unmapped { mapping }) => self.borrower.unmapped(mapping),
            (Entrance::Folder, Question::OfMemory(question)) => {
                giving::handle(question, &self.socket, self.borrower.process)
            }
            _ => Handled::Wrong,
        };
        match handled {
            Handled::Reply(reply) => {
                if !self.is_of_a_stranger() && self.stay == Stay::WhileKnown {
                    self.until = Instant::now() + PATIENCE / 2;
                }
                self.reply = Some(reply);
                self.send()
            }
            Handled::Unanswered => true,
            Handled::Wrong => false,
        }
    }

    fn send(&mut self) -> bool {
        let Some(Reply { answer, descriptors, .. }) = &self.reply else { return true };
        match socket::send(&self.socket, answer, descriptors) {
            Ok(true) => {
                // The descriptors are closed here.
                self.reply = None;
                true
            }
            Ok(false) => true,
            Err(_) => false,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A process that never got the answer does not let the block go.
        if let Some(block) = self.reply.take().and_then(|reply| reply.held) {
            let_go(self.borrower.process, block);
        }
        // What it let go is not told again.
        while let Ok(Some(packet)) = socket::receive_last(&self.socket)
            && let Some(question) = Question::from_packet(&packet.bytes)
        {
            self.borrower.handle_last(question);
        }
    }
}
