//! What neighbours ask, and how memory is given back for them: what one asks for, at most, and never below what this process
//! is guaranteed. What takes no time is answered at once. Giving takes as long as the driver does, so a thread of its own
//! does that, one question after the other, while the one that talks to other processes goes on handing out what is shared. It
//! is started when a neighbour asks for memory, and lives as long as there is something to give: while others have asked
//! lately, a process that holds more than its most also gives back unasked what it has free. Nothing here calls the
//! program's own code or waits longer than the neighbour does, except for what the driver takes.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use log::{debug, info};

use super::claims::{held_on, pass_by};
use super::codec::{Answer, BYTES_MOST, MemoryQuestion, Spare};
use super::connection::Handled;
use super::settings::limits_on;
use super::socket;
use super::status::{Division, gives_free_memory, is_on_offer, tell};
use crate::error::Bytes;
use crate::ids::Device;
use crate::memory::cache::{DeviceCaches, ToDiscard};
use crate::memory::device::{Patience, be_thread_for_others, in_calls_of_others, is_in_call_of_others, wake};
use crate::memory::limits::reserved_on;
use crate::memory::serve::{Help, trim_some, without_callbacks};
use crate::memory::sleep::sleep_for_others;
use crate::memory::tuning::{ASKED_LATELY, PATIENCE, RETRY, RETRY_MOST, WAIT};
use crate::observe::Activity;
use crate::observe::nvtx;
use crate::observe::target::MEMORY;
use crate::process;
use crate::runtime::KnownUuids;
use crate::sync::{InHand, ThisThread, lock};

/// The name of the thread; the system keeps 15 bytes.
const THREAD: &str = "gpupool-give";

/// Handles what a neighbour asks by a connection.
pub(super) fn handle(question: MemoryQuestion, socket: &Arc<OwnedFd>, process: i32) -> Handled {
    let known = |uuid| KnownUuids::Memory.device_with(&uuid).ok().flatten();
    let answer = match question {
        MemoryQuestion::Tell { before, with_pools } => Answer::Told(tell(before, with_pools)),
        MemoryQuestion::PassedBy { device, room } => {
            if let Some(device) = known(device) {
                pass_by(device, room);
            }
            return Handled::Unanswered;
        }
        MemoryQuestion::Give { spare, device, bytes, within_ms } => {
            let until = Instant::now() + Duration::from_millis(within_ms.into()).min(PATIENCE);
            let socket = Arc::downgrade(socket);
            give_later(AskedGive { socket, process, spare, device: known(device), bytes, until });
            return Handled::Unanswered;
        }
    };
    Handled::Reply(answer.into())
}

/// A neighbour that waits for memory.
#[derive(Debug)]
struct AskedGive {
    /// By which it is answered, unless it has been disconnected.
    socket: Weak<OwnedFd>,
    process: i32,
    spare: Spare,
    /// None if this process does not know it.
    device: Option<Device>,
    bytes: u64,
    until: Instant,
}

impl AskedGive {
    fn answer(self) {
        if !self.is_awaited() {
            return;
        }
        let given = self.device.map_or(0, |device| self.give(device));
        if let Some(socket) = self.socket.upgrade() {
            // Where there is no room for it the neighbour does not read, and is not waited for.
            let _ = socket::send(&socket, &Answer::Given(given.min(BYTES_MOST)), &[]);
        }
        drop(self);
        // From now on what it asks next is read.
        wake();
    }

    fn is_awaited(&self) -> bool {
        self.socket.strong_count() > 0
    }

    fn give(&self, device: Device) -> u64 {
        let activity = Activity::begin_of(self.bytes, format_args!("give memory to a neighbour"));
        let given = give(device, self.spare, self.bytes, limits_on(device).guarantee, self.until);
        if let Some(caches) = DeviceCaches::known(device) {
            caches.neighbours.give(given);
        }
        if given > 0 {
            let (process, took, kind) = (self.process, activity.took(), kind_of(self.spare));
            let (asked, given) = (Bytes(self.bytes), Bytes(given));
            info!(target: MEMORY, "{device}: process {process} asked for {asked}, and was given {given} of {kind} in {took}");
        }
        given
    }
}

/// What is asked for, in order, and whether a thread gives it.
#[derive(Debug)]
struct Gives {
    asked: VecDeque<AskedGive>,
    thread: GivingThread,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GivingThread {
    None,
    Runs,
}

static GIVES: Mutex<Gives> = Mutex::new(Gives { asked: VecDeque::new(), thread: GivingThread::None });
/// Notified when something is asked for.
static ASKED: Condvar = Condvar::new();

/// Leaves it to the thread, which is started if it does not run. Where the system has no thread left, the calling one does it.
fn give_later(asked: AskedGive) {
    let before = {
        let mut gives = lock(&GIVES);
        // So there are no more than connections.
        gives.asked.retain(AskedGive::is_awaited);
        gives.asked.push_back(asked);
        std::mem::replace(&mut gives.thread, GivingThread::Runs)
    };
    if before == GivingThread::Runs {
        ASKED.notify_one();
    } else if let Err(error) = thread::Builder::new().name(THREAD.to_owned()).spawn(run) {
        debug!(target: MEMORY, "no thread to give memory to neighbours: {error}");
        while let Some(asked) = next(Duration::ZERO) {
            asked.answer();
        }
    }
}

fn run() {
    nvtx::name_thread(THREAD);
    be_thread_for_others();
    let mut until = Instant::now();
    loop {
        let pause = until.saturating_duration_since(Instant::now()).min(RETRY_MOST * 0x10);
        match next(pause) {
            Some(asked) => {
                asked.answer();
                until = Instant::now() + ASKED_LATELY;
            }
            None if pause.is_zero() => return,
            None => give_unasked(),
        }
    }
}

/// Returns what is asked for next, once it is within a time. Without any time, and with nothing to do, the thread is over.
fn next(patience: Duration) -> Option<AskedGive> {
    let waited = ASKED.wait_timeout_while(lock(&GIVES), patience, |gives| gives.asked.is_empty());
    let (mut gives, _) = waited.unwrap_or_else(PoisonError::into_inner);
    let asked = gives.asked.pop_front();
    if asked.is_none() && patience.is_zero() {
        gives.thread = GivingThread::None;
    }
    asked
}

/// Gives back what is free of what this process holds beyond its most.
fn give_unasked() {
    for device in DeviceCaches::of_devices().filter_map(|caches| caches.memory.location.device()) {
        let held = reserved_on(device);
        let limits = limits_on(device);
        if let Some(most) = limits.most.filter(|most| held > *most) {
            give(device, Spare::Free, held - most, limits.guarantee, Instant::now());
        }
    }
}

/// Gives back about so many bytes of a device for a call that found none, of others' code in this process, and then has
/// neighbours do so; returns how many the driver has by then. What is guaranteed to this process is its own to give.
pub(in crate::memory) fn give_way(device: Device, bytes: u64) -> u64 {
    if process::is_forked() {
        return 0;
    }
    let until = Instant::now() + WAIT;
    let mut given: u64 = 0;
    for spare in Spare::ALL {
        if given < bytes {
            // Whoever changes a pool may wait for what the caller of the driver holds, so none that another thread changes
            // is waited for.
            let _in_hand = (spare == Spare::Offered).then(InHand::begin);
            given += in_calls_of_others(|| give(device, spare, bytes - given, 0, until));
        }
    }
    let left = bytes.saturating_sub(given);
    if left > 0
        && let Some(caches) = DeviceCaches::known(device)
    {
        // What another thread is giving back no cache has any more, and the driver not yet.
        let _ = caches.memory.under_way.wait();
    }
    given + if left > 0 { Help::Neighbours.give(device, left).unwrap_or(0) } else { 0 }
}

/// Gives back at most about so many bytes of a device, and none below what is to be kept; returns how many the driver has
/// by then.
fn give(device: Device, spare: Spare, asked: u64, kept: u64, until: Instant) -> u64 {
    let Some(caches) = DeviceCaches::known(device) else {
        // A process that has only handles of the device.
        let has_handles = spare == Spare::Free;
        return if has_handles { give_handles(device, asked, until) } else { 0 };
    };
    let gone = gone_since(caches);
    let division = Division::of(device);
    let held = held_on(device, &division);
    let above = division.reserved.saturating_sub(kept);
    let above = match spare {
        // What a claim is to be taken from, in this process's cache, it keeps.
        Spare::Free => above.min(division.free.saturating_sub(held.unwrap_or(0))),
        Spare::Discardable => above,
        Spare::Offered if held.is_some() => 0,
        Spare::Offered => above,
    };
    let allowance = Allowance { asked, above };
    // Idle handles are beside what is guaranteed.
    if allowance.wanted() == 0 && spare != Spare::Free {
        return 0;
    }
    let of_handles = without_callbacks(|| match spare {
        Spare::Free => give_free(caches, device, allowance, until),
        Spare::Discardable => {
            let (wanted, most) = (allowance.wanted(), allowance.above);
            caches.discardable.discard(ToDiscard { wanted, most, patience: Patience::Ask }, None);
            0
        }
        Spare::Offered => {
            give_offered(caches, allowance, until);
            0
        }
    });
    gone() + of_handles
}

/// Returns what tells how many bytes have gone to the driver since now, whatever the program takes meanwhile.
fn gone_since(caches: &'static DeviceCaches) -> impl Fn() -> u64 {
    let went = || caches.memory.given_back();
    let before = went();
    move || went().saturating_sub(before)
}

pub(super) const fn kind_of(spare: Spare) -> &'static str {
    match spare {
        Spare::Free => "free memory",
        Spare::Discardable => "discardable pages",
        Spare::Offered => "pools that sleep for others",
    }
}

/// How much may go.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    asked: u64,
    /// What this process has above its guarantee.
    above: u64,
}

impl Allowance {
    fn wanted(self) -> u64 {
        self.asked.min(self.above)
    }

    fn less(self, gone: u64) -> Self {
        Self { asked: self.asked.saturating_sub(gone), above: self.above.saturating_sub(gone) }
    }
}

/// Gives back free memory, and then idle handles, of which it returns the bytes. Pages that the GPU may be using go as
/// soon as it is done, which is waited for as long as the neighbour waits.
fn give_free(caches: &'static DeviceCaches, device: Device, allowance: Allowance, until: Instant) -> u64 {
    let thread = ThisThread::get();
    let gone = gone_since(caches);
    let mut going = 0;
    for pool in caches.pools.all().iter().filter(|pool| gives_free_memory(pool)) {
        let left = allowance.less(going);
        if left.wanted() == 0 {
            break;
        }
        // What the driver refuses is tried again whenever memory is given back.
        going += trim_some(pool, thread, left.wanted(), left.above - left.wanted()).unwrap_or(0);
    }
    while gone() < going && Instant::now() < until {
        caches.memory.try_end_retired();
        if !caches.memory.has_retired() {
            // Another thread ends it, or has it in use again.
            let _ = caches.memory.under_way.wait();
            break;
        }
        thread::sleep(RETRY);
    }
    if going >= allowance.asked {
        return 0;
    }
    give_handles(device, allowance.asked, until)
}

/// Destroys idle handles, and returns how many bytes went. Others' call of the driver may be in the middle of one of the very
/// library, which has locked what destroying waits for: then another thread does it, which is waited for that long.
fn give_handles(device: Device, bytes: u64, until: Instant) -> u64 {
    let give = move || Help::IdleHandles.give(device, bytes).unwrap_or(0);
    if !is_in_call_of_others() {
        return give();
    }
    let (told, given) = mpsc::channel();
    let run = move || {
        be_thread_for_others();
        let _ = told.send(give());
    };
    let has_begun = Help::IdleHandles.is_there() && thread::Builder::new().name(THREAD.to_owned()).spawn(run).is_ok();
    if !has_begun {
        return 0;
    }
    // What goes later is there for the next call.
    given.recv_timeout(until.saturating_duration_since(Instant::now())).unwrap_or(0)
}

fn give_offered(caches: &'static DeviceCaches, allowance: Allowance, until: Instant) {
    let gone = gone_since(caches);
    for pool in caches.pools.all().iter().filter(|pool| is_on_offer(pool)) {
        let left = allowance.less(gone());
        if left.wanted() == 0 || Instant::now() >= until {
            break;
        }
        // It goes as a whole, or not at all.
        if pool.budget().reserved() <= left.above
            && let Err(error) = sleep_for_others(pool, until)
        {
            info!(target: MEMORY, "pool {} does not sleep for a neighbour: {error}", pool.label());
        }
    }
}
