//! Asking the neighbours, each question by a connection of its own. All are asked at once what they hold, as many at a time
//! as this process's descriptors allow; who does not answer in time is passed by. Then those of lowest priority are asked for
//! memory first: each for free memory, then each for discardable pages, then each for pools that were offered, until there
//! is enough or the time is over.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use log::Level;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::codec::{Answer, Held, MemoryQuestion, Message, Question, Spare, Told};
use super::giving::kind_of;
use super::place::{Others, Reached, others};
use super::settings::environment;
use super::socket::{self, Contact, is_ready, timespec};
use crate::error::{Bytes, Result};
use crate::ids::Device;
use crate::memory::cache::DeviceCaches;
use crate::memory::device::log_out;
use crate::memory::tuning::{A_FEW, GIVEN_WITHIN, PAGE, RETRY_MOST};
use crate::observe::Activity;
use crate::process::share_of_descriptors;
use crate::runtime::DeviceUuid;
use crate::sync::lock;

/// A neighbour that was asked what it holds.
#[derive(Debug)]
struct Awaited {
    /// Of its socket.
    name: String,
    contact: Contact,
}

/// Asks a process that is connected; false if there is no room.
///
/// # Errors
/// What keeps this process from asking, whoever is asked.
fn ask(contact: &Contact, question: MemoryQuestion) -> io::Result<bool> {
    match socket::send(&contact.socket, &Question::OfMemory(question), &[]) {
        // It has disconnected this process, which reads that as its answer.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(true),
        outcome => outcome,
    }
}

/// Returns what a process has answered: none that there is nothing yet, an error for the end or something else.
fn answer(contact: &Contact) -> io::Result<Option<Answer>> {
    let Some(packet) = socket::receive(&contact.socket)? else { return Ok(None) };
    Answer::from_packet(&packet.bytes).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl Others {
    /// Connects to a neighbour.
    ///
    /// # Errors
    /// What keeps this process from asking, whoever is asked.
    fn connect(&self, name: &str) -> io::Result<Reached> {
        self.open.as_ref().map_or(Ok(Reached::Nobody), |open| open.connect(name))
    }

    /// Connects to a neighbour and asks it.
    ///
    /// # Errors
    /// As [`Others::connect`].
    fn ask(&self, name: &str, question: MemoryQuestion) -> io::Result<Reached> {
        match self.connect(name)? {
            Reached::Connected(contact) if !ask(&contact, question)? => Ok(Reached::Busy),
            reached => Ok(reached),
        }
    }

    /// Asks as many more what they hold as this process's descriptors allow, but for those that are still stopped, and returns
    /// those for which too many others wait.
    fn ask_more(
        &mut self,
        tell: MemoryQuestion,
        waiting: &mut Vec<Awaited>,
        silent: &mut Vec<String>,
    ) -> Result<Vec<String>> {
        let mut busy = Vec::new();
        while waiting.len() < share_of_descriptors()
            && let Some(name) = self.names.pop_front()
        {
            if is_still_stopped(&name) {
                silent.push(name);
                continue;
            }
            let asked = self.ask(&name, tell);
            match asked.map_err(|error| self.cannot_be_asked(&error))? {
                Reached::Connected(contact) => waiting.push(Awaited { name, contact }),
                Reached::Busy => busy.push(name),
                Reached::Nobody => {}
            }
        }
        Ok(busy)
    }

    /// Returns whether a neighbour has ended, as far as this process can see it. Its socket may stay open in a child of it, and
    /// fill with questions: it is removed.
    fn has_ended(&self, asked: &Awaited) -> bool {
        let process = asked.contact.peer.process;
        let has_ended = process > 0 && socket::has_ended(process);
        if has_ended && let Some(open) = &self.open {
            open.remove(&asked.name);
        }
        has_ended
    }
}

/// Returns the letter of a process's state, if the system shows one.
///
/// # Errors
/// `NotFound` for one that has ended, or that this process cannot see.
fn state_of(process: i32) -> io::Result<Option<u8>> {
    if process <= 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    let text = fs::read(format!("/proc/{process}/stat"))?;
    // Behind its program's name, which may have any characters.
    Ok(text.iter().rposition(|byte| *byte == b')').and_then(|end| text.get(end + 2)).copied())
}

/// Returns whether a process runs, so that an answer may still come; false for one that is stopped, or cannot be seen.
fn is_running(process: i32) -> bool {
    match state_of(process) {
        Ok(state) => state.is_none_or(|state| !b"TtZX".contains(&state)),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

fn is_stopped(process: i32) -> bool {
    matches!(state_of(process), Ok(Some(b'T' | b't')))
}

/// The neighbours that were stopped when they had not answered in time, by the names of their sockets. One that still is gets
/// no question: each would wait at its socket, where there is room for only so many.
static STOPPED: Mutex<BTreeMap<String, i32>> = Mutex::new(BTreeMap::new());

fn is_still_stopped(name: &str) -> bool {
    let Some(process) = lock(&STOPPED).get(name).copied() else { return false };
    let is_stopped = is_stopped(process);
    if !is_stopped {
        lock(&STOPPED).remove(name);
    }
    is_stopped
}

/// For whom an answer is waited beyond the time of silence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitFor {
    Nobody,
    /// For those that run: what they have claimed must not be granted to others because they are slow.
    TheRunning,
}

/// What neighbours have told, with the names of their sockets, and how many have not.
#[derive(Default, Debug)]
pub(super) struct Heard {
    told: Vec<(String, Told)>,
    /// The names of those that have not answered in time.
    silent: Vec<String>,
    /// How many could not be asked, as too many others wait for them.
    pub(super) unasked: usize,
}

impl Heard {
    pub(super) fn told(&self) -> impl Iterator<Item = &Told> {
        self.told.iter().map(|(_, told)| told)
    }

    /// Returns what they hold of a device.
    pub(super) fn on(&self, device: DeviceUuid) -> Vec<Held> {
        self.told().flat_map(|told| &told.held).filter(|held| held.device == device).copied().collect()
    }

    pub(super) fn answered(&self) -> usize {
        self.told.len()
    }

    pub(super) fn unanswered(&self) -> usize {
        self.silent.len() + self.unasked
    }

    /// Tells those that were passed by that beside a new claim there is room for so many bytes, of which each may keep an equal
    /// part: once they go on, they may have claimed more than that. Returns whether all will know: none is told, and may lose
    /// what it has claimed, before all are reached.
    pub(super) fn pass_by_silent(&mut self, device: DeviceUuid, room: u64) -> Result<bool> {
        if self.silent.is_empty() {
            return Ok(true);
        }
        let (others, mut reached) = (others()?, Vec::new());
        for name in std::mem::take(&mut self.silent) {
            match others.connect(&name).map_err(|error| others.cannot_be_asked(&error))? {
                Reached::Connected(silent) => reached.push(silent),
                Reached::Busy => self.unasked += 1,
                Reached::Nobody => {}
            }
        }
        let room = room / reached.len().max(1) as u64;
        for silent in reached.into_iter().filter(|_| self.unasked == 0) {
            let passed_by = MemoryQuestion::PassedBy { device, room };
            ask(&silent, passed_by).map_err(|error| others.cannot_be_asked(&error))?;
        }
        Ok(self.unasked == 0)
    }
}

/// Asks all neighbours a question for what they hold. It ends when no one has answered for so long, or after `most`: hundreds that all ask each other need longer.
///
/// # Errors
/// Those of [`others`]; `ErrorKind::Unavailable` if this process can connect to no more of them.
fn ask_what_they_hold(tell: MemoryQuestion, silence: Duration, most: Duration, wait_for: WaitFor) -> Result<Heard> {
    let begun = Instant::now();
    let mut others = others()?;
    let (mut heard, mut waiting, mut last) = (Heard::default(), Vec::new(), begun);
    lock(&STOPPED).retain(|name, _| others.names.contains(name));
    loop {
        let busy = others.ask_more(tell, &mut waiting, &mut heard.silent)?;
        let pause = if busy.is_empty() { silence / 4 } else { RETRY_MOST };
        others.names.extend(busy);
        let left = most.saturating_sub(begun.elapsed());
        let quiet = silence.saturating_sub(last.elapsed());
        if quiet.min(left).is_zero() {
            if waiting.is_empty() && wait_for == WaitFor::Nobody {
                break;
            }
            let is_waited_for =
                |process: i32| wait_for == WaitFor::TheRunning && !left.is_zero() && is_running(process);
            for asked in waiting.extract_if(.., |asked| !is_waited_for(asked.contact.peer.process)) {
                let process = asked.contact.peer.process;
                if is_stopped(process) {
                    lock(&STOPPED).insert(asked.name.clone(), process);
                }
                heard.silent.push(asked.name);
            }
            last = Instant::now();
        }
        if left.is_zero() || (waiting.is_empty() && others.names.is_empty()) {
            break;
        }
        let mut polled: Vec<_> =
            waiting.iter().map(|asked| PollFd::new(&asked.contact.socket, PollFlags::IN)).collect();
        let outcome = poll(&mut polled, Some(&timespec(left.min(quiet).min(pause))));
        let ready: Vec<_> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        match outcome {
            Ok(0) => waiting.retain(|asked| !others.has_ended(asked)),
            Ok(_) => {
                let mut ready = ready.into_iter();
                for asked in std::mem::take(&mut waiting) {
                    let answer = if ready.next().unwrap_or(false) { answer(&asked.contact) } else { Ok(None) };
                    match answer {
                        Ok(None) => waiting.push(asked),
                        Ok(Some(Answer::Told(told))) => heard.told.push((asked.name, told)),
                        // Something else, or the end.
                        _ if others.has_ended(&asked) => {}
                        _ => heard.silent.push(asked.name),
                    }
                }
                last = Instant::now();
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(others.cannot_be_asked(&error.into())),
        }
    }
    heard.unasked = others.names.len();
    Ok(heard)
}

/// Returns how long asking may take.
pub(super) fn deadline() -> Duration {
    environment().map_or(GIVEN_WITHIN, |read| read.deadline)
}

/// Returns what the neighbours tell, also where hundreds all ask each other, until none has answered for half of the
/// deadline; of their claims those made before a time, and if a device is given what they and their pools hold of that alone.
///
/// # Errors
/// Those of [`others`]; `ErrorKind::Unavailable` if this process can connect to no more of them.
pub(super) fn what_they_hold(before: u64, with_pools: Option<DeviceUuid>, wait_for: WaitFor) -> Result<Heard> {
    ask_what_they_hold(MemoryQuestion::Tell { before, with_pools }, deadline() / 2, deadline() * A_FEW as u32, wait_for)
}

/// A neighbour that may give memory of the device, and what it tells of that.
#[derive(Debug)]
struct Giving {
    /// Of its socket.
    socket: String,
    process: u32,
    name: String,
    held: Held,
    /// What it may still be asked for, by its guarantee.
    above: u64,
    /// Whether it did not answer in time.
    is_passed_by: bool,
}

/// Sorts neighbours in the order in which they are asked: those above their most first, then by priority, the lowest
/// first, then those that can give most.
fn in_order(neighbours: &mut [Giving]) {
    neighbours.sort_by_key(|giving| {
        let held = &giving.held;
        let is_within = held.most.is_none_or(|most| held.reserved <= most);
        (is_within, held.priority, Reverse(held.would_give()))
    });
}

/// What came of asking for memory.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) given: u64,
    /// Whether one of them may give more once the time is over.
    pub(super) is_one_late: bool,
    /// What the neighbours told before.
    pub(super) heard: Result<Heard>,
    pub(super) took: Duration,
}

/// Asks the neighbours to give back so many bytes of a device.
pub(super) fn ask_for_memory(device: Device, uuid: DeviceUuid, wanted: u64) -> Outcome {
    let begun = Instant::now();
    let until = begun + deadline();
    let activity = Activity::begin_of(wanted, format_args!("ask neighbours for memory"));
    let tell = MemoryQuestion::Tell { before: u64::MAX, with_pools: None };
    let heard = ask_what_they_hold(tell, deadline() / 2, deadline() / 2, WaitFor::Nobody);
    let on_device = |(socket, told): &(String, Told)| {
        let held = *told.held.iter().find(|held| held.device == uuid)?;
        let (socket, name, above) = (socket.clone(), told.name.clone(), held.above_guarantee());
        Some(Giving { socket, process: told.process, name, held, above, is_passed_by: false })
    };
    let told = heard.as_ref().map_or(&[][..], |heard| &heard.told);
    let mut neighbours: Vec<_> = told.iter().filter_map(on_device).collect();
    in_order(&mut neighbours);
    let mut given: u64 = 0;
    if let Ok(others) = others() {
        for spare in Spare::ALL {
            for neighbour in &mut neighbours {
                let left = until.saturating_duration_since(Instant::now());
                if given >= wanted || left.is_zero() {
                    break;
                }
                given += neighbour.give(&others, device, uuid, spare, wanted - given, left);
            }
        }
    }
    let took = activity.took();
    if let Some(caches) = DeviceCaches::known(device) {
        caches.neighbours.ask(given, begun.elapsed());
    }
    let (count, wanted, gave) = (neighbours.len(), Bytes(wanted), Bytes(given));
    log_out(Level::Info, format_args!("{device}: asked {count} neighbours for {wanted}; they gave {gave} in {took}"));
    let is_one_late = neighbours.iter().any(|neighbour| neighbour.is_passed_by);
    Outcome { given, is_one_late, heard, took: begun.elapsed() }
}

impl Giving {
    /// Asks for memory of one kind, and returns how much came in time.
    fn give(
        &mut self,
        others: &Others,
        device: Device,
        uuid: DeviceUuid,
        spare: Spare,
        wanted: u64,
        within: Duration,
    ) -> u64 {
        let has = self.held.spare[spare as usize].min(self.above);
        // Idle handles are not told, and beside what is guaranteed.
        if self.is_passed_by || (has == 0 && spare != Spare::Free) {
            return 0;
        }
        let bytes = wanted.next_multiple_of(PAGE);
        let within_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        let question = MemoryQuestion::Give { spare, device: uuid, bytes, within_ms };
        let answering = match others.ask(&self.socket, question) {
            Ok(Reached::Connected(contact)) if is_ready(&contact.socket, within) => contact,
            _ => {
                // Stopped, at work for another one, or gone: it is passed by, for what comes next, too.
                self.is_passed_by = true;
                return 0;
            }
        };
        let given = if let Ok(Some(Answer::Given(bytes))) = answer(&answering) { bytes } else { 0 };
        self.above = self.above.saturating_sub(given);
        if given > 0 {
            let (process, name, kind) = (self.process, &self.name, kind_of(spare));
            let given = Bytes(given);
            log_out(Level::Debug, format_args!("{device}: process {process} {name:?} gave {given} of {kind}"));
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_important_are_asked_first() {
        let giving = |process, priority, reserved, most, free| {
            let held = Held { reserved, most, priority, spare: [free, 0, 0], ..Held::default() };
            let (socket, name, above) = (String::new(), String::new(), held.above_guarantee());
            Giving { socket, process, name, held, above, is_passed_by: false }
        };
        let mut neighbours = [
            giving(1, 5, 100, None, 50),
            giving(2, -5, 100, None, 10),
            giving(3, -5, 100, Some(100), 20),
            // Above its most, whatever its priority.
            giving(4, 9, 100, Some(99), 1),
        ];
        in_order(&mut neighbours);
        assert_eq!(neighbours.map(|giving| giving.process), [4, 3, 2, 1]);
    }
}
