//! Taking up a block that another process shares.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use log::debug;
use rustix::process::geteuid;

use super::attached_buffer::AttachedBuffer;
use super::attachment::Attachment;
use super::books::{self, RegionKey, Wanted};
use super::imported::{Imported, known};
use super::mapping::Mapping;
use super::owner_process::{Link, Owner, Unanswered};
use super::retired::{Use, end_mappings};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::device::DeviceMemory;
use crate::memory::serve::device_caches;
use crate::memory::share::broker;
use crate::memory::share::devices::{check_reach, device_with, uuid_of};
use crate::memory::share::sharing::{parcels, shared};
use crate::memory::share::token::{ShareToken, Told};
use crate::memory::share::wire::{Ask, DESCRIBED, DESCRIPTORS, Described, Held, Request, Status, described};
use crate::memory::tuning::SIDE_BY_SIDE;
use crate::observe::target::MEMORY;
use crate::process;
use crate::runtime::{self, DeviceUuid, Event, ExportedEvent, Stream, get};

/// The most extents of a block: each is a page at least, of the addresses that a GPU has.
const EXTENTS_MOST: u32 = 0x100_0000;

/// Takes a block up, for a stream's device or the one that is named, and has the stream wait for what was submitted before it
/// was shared.
///
/// # Errors
/// `ErrorKind::InvalidValue` for a token of elsewhere, a block that was freed, a device that cannot reach the memory, or a
/// captured stream; `ErrorKind::Unavailable` if its owner has ended or does not answer, or the system has no descriptor
/// left; `ErrorKind::Library` if the driver refuses. All is as before then.
pub(in crate::memory) fn attach(
    token: &ShareToken,
    on: Option<Device>,
    stream: Option<&Stream>,
) -> Result<(AttachedBuffer, Stream)> {
    process::refuse_forked()?;
    let told = token.told();
    told.check(get()?.kind(), geteuid().as_raw())?;
    let owned_by = device_with(&told.device)?;
    let on = on.map(runtime::existing).transpose()?.or(stream.map(Stream::device)).unwrap_or(owned_by);
    check_reach(on, owned_by)?;
    let stream = match stream {
        Some(stream) => stream.kept().on(Some(on))?,
        None => Stream::current_of(on),
    };
    if stream.is_captured()? {
        return Err(Error::invalid_value(
            "the stream is being captured, and a graph cannot wait for work of another process: attach the buffer before the \
             capture",
        ));
    }
    let memory = &device_caches(on)?.memory;
    let buffer = if broker::start()? == told.name {
        attach_own(&told, memory)?
    } else {
        attach_others(&told, owned_by, memory, &stream)?
    };
    Ok((buffer, stream))
}

/// Takes up a block of this process itself: the same memory, kept until this use of it is freed as well.
fn attach_own(told: &Told, memory: &'static DeviceMemory) -> Result<AttachedBuffer> {
    let block = shared::find(told.block).filter(|block| block.secret.is(&told.secret.0));
    let block = block.filter(|block| parcels::hold_for_another(block, told.parcel));
    let block = block.ok_or_else(|| freed(&told.process))?;
    let home = block.memory().device;
    let is_here = || {
        if home == memory.device {
            return Ok(());
        }
        Err(Error::invalid_value(format!(
            "the buffer is this process's own, on {home}: use it on another device after enable_peer_access"
        )))
    };
    let checked = uuid_of(home).and_then(|device| check(told, block.bytes, device)).and_then(|()| is_here());
    if let Err(error) = checked.and_then(|()| block.place().map(drop)) {
        block.sharing.let_go();
        return Err(error);
    }
    parcels::arrived(told.parcel, &block);
    let address = block.block.address();
    Ok(AttachedBuffer::new(Use::Own(block), address, told.bytes, memory))
}

/// Refuses a token that says anything else of its block than the block's owner does.
fn check(told: &Told, bytes: u64, device: DeviceUuid) -> Result<()> {
    if (told.bytes, told.device) == (bytes, device) {
        return Ok(());
    }
    Err(Error::invalid_value(format!(
        "this is no token that process {} has made: it says that its buffer has {} bytes, and there it has {bytes}, or it names \
         another device; give what share() returned, unchanged",
        told.process, told.bytes
    )))
}

#[cold]
fn freed(process: &u32) -> Error {
    Error::invalid_value(format!(
        "process {process} has freed the buffer, or never shared it: keep it there until it was attached"
    ))
}

/// A hold of another process's block, let go unless it is kept.
#[derive(Debug)]
struct Hold<'a> {
    link: Link<'a>,
    told: &'a Told,
    is_held: bool,
}

impl Hold<'_> {
    fn request(&self, ask: Ask, from: u64, count: u32) -> Request {
        Request { ask, secret: self.told.secret, block: self.told.block, from, count }
    }

    fn ask(&self, ask: Ask, from: u64, count: u32) -> Result<(Vec<u8>, Vec<OwnedFd>), Unanswered> {
        self.link.send(&self.request(ask, from, count))?;
        self.answer()
    }

    /// Receives what was asked for.
    fn answer(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), Unanswered> {
        let packet = self.link.receive()?;
        let process = self.told.process;
        let why = || String::from_utf8_lossy(&packet.bytes[1..]).into_owned();
        match packet.bytes[0] {
            given if given == Status::Given as u8 => Ok((packet.bytes[1..].to_vec(), packet.descriptors)),
            refused if refused == Status::Refused as u8 => {
                Err(Error::invalid_value(format!("process {process} does not share the buffer: {}", why())).into())
            }
            _ => Err(Error::unavailable(format!("process {process} could not share the buffer: {}", why())).into()),
        }
    }

    /// Lets go, and keeps the connection.
    fn let_go(mut self) {
        self.is_held = false;
        if self.link.send(&self.request(Ask::LetGo, 0, 0)).is_ok() {
            self.link.put_back();
        }
    }

    /// Keeps the hold, and the connection. Says that what was sent has arrived.
    fn keep(self) {
        if self.told.parcel > 0 {
            // Where the owner has ended there is nothing to say.
            let _ = self.link.send(&self.request(Ask::Arrived, self.told.parcel, 0));
        }
        self.link.put_back();
    }
}

fn attach_others(
    told: &Told,
    owned_by: Device,
    memory: &'static DeviceMemory,
    stream: &Stream,
) -> Result<AttachedBuffer> {
    let owner = Owner::of(told);
    let mut hold = Hold { link: owner.connect()?, told, is_held: false };
    let (held, names) = match take(&mut hold) {
        Ok(held) => held,
        // An idle connection may have been closed since; a new one tells.
        Err(Unanswered::Broken(error)) if !hold.is_held => {
            hold = Hold { link: owner.connect()?, told, is_held: false };
            take(&mut hold).map_err(|_| error)?
        }
        Err(unanswered) => return Err(unanswered.into()),
    };
    let attached = wait(&hold, held, &names, stream).and_then(|()| find_or_map(&hold, &owner, held, owned_by, memory));
    match attached {
        Ok(attachment) => {
            let address = attachment.address;
            hold.keep();
            Ok(AttachedBuffer::new(Use::Mapped(attachment), address, told.bytes, memory))
        }
        Err(error) => {
            hold.let_go();
            Err(error)
        }
    }
}

/// Returns a block that is held in the region that is mapped here, or maps that.
fn find_or_map(
    hold: &Hold<'_>,
    owner: &Arc<Owner>,
    held: Held,
    owned_by: Device,
    memory: &'static DeviceMemory,
) -> Result<Arc<Attachment>> {
    let told = hold.told;
    check(told, held.bytes, held.device)?;
    let region = RegionKey { owner: owner.name, region: held.region, device: memory.device };
    let wanted = Wanted { owner, told, region, lead: held.lead };
    if let Some((attachment, is_again)) = books::find(&wanted) {
        if is_again {
            // It has a hold already.
            let _ = hold.link.send(&hold.request(Ask::LetGo, 0, 0));
        }
        return Ok(attachment);
    }
    let mapping = map(hold, owner, held, owned_by, memory)?;
    // So that it can stay once it is let go; where that fails it does not. Not before it is mapped, which may need the last
    // descriptors.
    if let Err(error) = owner.listen(&hold.request(Ask::News, 0, 0)) {
        debug!(target: MEMORY, "attached memory will not stay mapped: {error}");
    }
    books::add(mapping, &wanted).ok_or_else(|| Error::internal("what was just mapped is not in the books"))
}

fn take(hold: &mut Hold<'_>) -> Result<(Held, Vec<[u8; 64]>), Unanswered> {
    let (packet, _) = hold.ask(Ask::Hold, hold.told.parcel, 0)?;
    hold.is_held = true;
    Held::from_bytes(&packet)
        .filter(|(held, _)| held.extents <= EXTENTS_MOST)
        .map(|(held, names)| (held, names.to_vec()))
        .ok_or_else(|| Error::internal("a process that shares memory describes it in a way that is not known").into())
}

/// Has the stream wait for what was submitted before the block was shared: the events that came along, and the others.
fn wait(hold: &Hold<'_>, held: Held, names: &[[u8; 64]], stream: &Stream) -> Result<()> {
    let wait_for = |exported| stream.wait(&Event::import(stream.device(), exported)?);
    for name in names {
        wait_for(ExportedEvent { name: *name, descriptor: None })?;
    }
    let mut from = names.len() as u32;
    while from < held.events {
        let count = (held.events - from).min(DESCRIPTORS as u32);
        let (names, descriptors) = hold.ask(Ask::Events, from.into(), count)?;
        let mut descriptors = descriptors.into_iter();
        for name in names.as_chunks::<64>().0 {
            wait_for(ExportedEvent { name: *name, descriptor: descriptors.next() })?;
        }
        from += count;
    }
    Ok(())
}

/// Maps the region of a block that is held.
fn map(
    hold: &Hold<'_>,
    owner: &Arc<Owner>,
    held: Held,
    owned_by: Device,
    memory: &'static DeviceMemory,
) -> Result<Mapping> {
    let mut all: Vec<Described> = Vec::new();
    while all.len() < held.extents as usize {
        let count = (held.extents as usize - all.len()).min(DESCRIBED) as u32;
        let (packet, _) = hold.ask(Ask::Describe, all.len() as u64, count)?;
        match described(&packet).filter(|described| !described.is_empty()) {
            Some(described) => all.extend(described),
            None => return Err(Error::internal("a process that shares memory describes less than it has")),
        }
    }
    let mut extents: Vec<_> = all.iter().map(|each| known(owner, each.extent)).collect();
    // The runs that are not here yet.
    let mut missing = VecDeque::new();
    let mut at = 0;
    while at < extents.len() {
        let most = if missing.is_empty() { SIDE_BY_SIDE } else { DESCRIPTORS };
        let run = extents[at..].iter().take(most).take_while(|known| known.is_none()).count();
        if run > 0 {
            missing.push_back(at..at + run);
        }
        at += run.max(1);
    }
    let mut asked = VecDeque::new();
    while !(missing.is_empty() && asked.is_empty()) {
        while asked.len() < SIDE_BY_SIDE
            && let Some(run) = missing.pop_front()
        {
            hold.link.send(&hold.request(Ask::Extents, run.start as u64, run.len() as u32))?;
            asked.push_back(run);
        }
        let Some(run) = asked.pop_front() else { break };
        let outcome = take_up(hold, owner, &all, &run, memory.device, &mut extents);
        if outcome.is_err() {
            // What is still on its way is not the next request's answer.
            asked.iter().try_for_each(|_| hold.link.receive().map(drop))?;
        }
        outcome?;
    }
    let extents: Option<Vec<_>> =
        extents.into_iter().zip(&all).map(|(imported, each)| Some((imported?, each.bytes))).collect();
    let extents = extents.ok_or_else(|| Error::internal("an extent was not taken up"))?;
    let bytes = extents.iter().try_fold(0_u64, |sum, (_, bytes)| sum.checked_add(*bytes));
    let is_inside = held.lead.checked_add(held.bytes).is_some_and(|end| bytes.is_some_and(|bytes| end <= bytes));
    if !is_inside {
        return Err(Error::internal("a shared block does not lie in its region"));
    }
    Mapping::map(memory, owned_by, owner, held.region, extents).map_err(|(error, left)| {
        // What the driver refuses to undo is undone later.
        end_mappings(left.into_iter().map(|left| *left).collect());
        error
    })
}

/// Takes up the extents of one answer. Their descriptors are closed then.
fn take_up(
    hold: &Hold<'_>,
    owner: &Owner,
    all: &[Described],
    run: &std::ops::Range<usize>,
    device: Device,
    extents: &mut [Option<Arc<Imported>>],
) -> Result<()> {
    let (_, descriptors) = hold.answer()?;
    if descriptors.len() != run.len() {
        return Err(Error::internal("a process that shares memory sent fewer descriptors than it has extents"));
    }
    for (at, descriptor) in run.clone().zip(descriptors) {
        extents[at] = Some(Imported::new(owner, all[at].extent, device, descriptor.as_fd())?);
    }
    Ok(())
}
