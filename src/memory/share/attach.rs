//! How a block that another process shares is attached: its owner notes that this process holds it, the stream waits for the
//! owner's events, and the block's region is found in the mapping cache, or mapped.
//!
//! If any of this fails, all is as before: the block is let go, and what was mapped is unmapped. What the owner says of its memory
//! is checked as far as this process could come to harm by it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use log::debug;
use rustix::process::geteuid;

use super::attached::{AttachedBuffer, Attachment, BlockHold};
use super::client::{Link, Owner};
use super::mapping::{AttachedMapping, ImportedExtent, RegionKey};
use super::mapping_cache::{self, MappedBlock};
use super::token::{ShareToken, TokenFields, device_with, uuid_of};
use super::wire::{Ask, DESCRIBED, DESCRIPTORS, HeldBlock, Message, described};
use super::{broker, shared};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::device::{DescribedExtent, DeviceMemory, reaches};
use crate::memory::serve::device_caches;
use crate::memory::tuning::SIDE_BY_SIDE;
use crate::observe::target::MEMORY;
use crate::process;
use crate::runtime::{self, DeviceUuid, Event, ExportedEvent, Stream, get};

/// The most extents of a block: each is a page at least, of the addresses that a GPU has.
const EXTENTS_MOST: u32 = 0x100_0000;

/// Attaches a block for the given device or that of the stream, and has the stream wait for what was submitted before the block
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
    let fields = token.fields();
    fields.check(get()?.kind(), geteuid().as_raw())?;
    let owned_by = device_with(&fields.device)?;
    let on = on.map(runtime::existing).transpose()?.or(stream.map(Stream::device)).unwrap_or(owned_by);
    if !reaches(on, owned_by)? {
        return Err(Error::invalid_value(format!(
            "{on} cannot reach the memory of {owned_by}, where the shared buffer is: the two are not connected by NVLink or \
             peer-to-peer PCIe; attach it on {owned_by} and copy through the host"
        )));
    }
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
    let buffer = if broker::start()? == fields.name {
        attach_own(&fields, memory)?
    } else {
        attach_others(&fields, owned_by, memory, &stream)?
    };
    Ok((buffer, stream))
}

/// Attaches a block of this process itself: the same memory, kept until this use of it is freed as well.
fn attach_own(token: &TokenFields, memory: &'static DeviceMemory) -> Result<AttachedBuffer> {
    let block = shared::find(token.block).filter(|block| block.secret.is(&token.secret.0));
    let block = block.filter(|block| block.hold(token.in_flight)).ok_or_else(|| {
        Error::invalid_value(format!(
            "process {} has freed the buffer, or never shared it: keep it there until it was attached",
            token.process
        ))
    })?;
    let check_block = || {
        let home = block.memory().device;
        check(token, block.bytes, uuid_of(home)?)?;
        if home != memory.device {
            return Err(Error::invalid_value(format!(
                "the buffer is this process's own, on {home}: use it on another device after enable_peer_access"
            )));
        }
        block.place().map(drop)
    };
    if let Err(error) = check_block() {
        block.sharing.let_go();
        return Err(error);
    }
    block.arrived(token.in_flight);
    let address = block.block.address();
    Ok(AttachedBuffer::new(BlockHold::Own(block), address, token.bytes, memory))
}

/// Refuses a token that differs from what the block's owner says of the block.
fn check(token: &TokenFields, bytes: u64, device: DeviceUuid) -> Result<()> {
    if (token.bytes, token.device) == (bytes, device) {
        return Ok(());
    }
    Err(Error::invalid_value(format!(
        "this is no token that process {} has made: it says that its buffer has {} bytes, and there it has {bytes}, or it names \
         another device; give what share() returned, unchanged",
        token.process, token.bytes
    )))
}

/// Attaches a block of another process.
fn attach_others(
    token: &TokenFields,
    home: Device,
    memory: &'static DeviceMemory,
    stream: &Stream,
) -> Result<AttachedBuffer> {
    let link = Owner::of(token).connect()?;
    let mut attaching = Attaching { link, token, home, memory };
    let mut answer = attaching.ask(Ask::Hold, token.in_flight, 0);
    if answer.is_err() && attaching.link.is_broken() {
        // An idle connection may have been closed since it was used.
        attaching.link = attaching.link.owner.connect()?;
        answer = attaching.ask(Ask::Hold, token.in_flight, 0);
    }
    let (held, _) = answer?;
    match attaching.find_or_map(&held, stream) {
        Ok(block) => {
            if token.in_flight > 0 {
                // If the owner has ended, nothing is to be sent.
                let _ = attaching.send(Ask::Arrived, token.in_flight, 0);
            }
            let (address, let_go) = (block.address, attaching.message(Ask::LetGo, 0, 0));
            let owner = attaching.link.put_back();
            let attachment = Attachment { block, home, owner, let_go, ending: None };
            Ok(AttachedBuffer::new(BlockHold::Others(attachment), address, token.bytes, memory))
        }
        Err(error) => {
            if attaching.send(Ask::LetGo, 0, 0).is_ok() {
                attaching.link.put_back();
            }
            Err(error)
        }
    }
}

/// A block of another process that is being attached.
#[derive(Debug)]
struct Attaching<'a> {
    link: Link,
    token: &'a TokenFields,
    /// The device that has the block.
    home: Device,
    /// Of the device that it is attached for.
    memory: &'static DeviceMemory,
}

impl Attaching<'_> {
    const fn message(&self, ask: Ask, from: u64, count: u32) -> Message {
        Message { ask, secret: self.token.secret, block: self.token.block, from, count }
    }

    fn send(&self, ask: Ask, from: u64, count: u32) -> Result<()> {
        self.link.send(&self.message(ask, from, count))
    }

    fn ask(&self, ask: Ask, from: u64, count: u32) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        self.send(ask, from, count)?;
        self.link.answer()
    }

    /// Has the stream wait for the owner's events, and returns the block where its region is mapped here. `held` is the answer to
    /// [`Ask::Hold`].
    fn find_or_map(&self, held: &[u8], stream: &Stream) -> Result<MappedBlock> {
        let (held, names) = HeldBlock::from_bytes(held)
            .filter(|(held, _)| held.extents <= EXTENTS_MOST)
            .ok_or_else(|| Error::internal("a process that shares memory describes it in a way that is not known"))?;
        self.wait(&held, names, stream)?;
        check(self.token, held.bytes, held.device)?;
        let region = RegionKey { owner: self.link.owner.name, region: held.region, device: self.memory.device };
        if let Some(block) = mapping_cache::find(&region, self.token.block, &held) {
            return Ok(block);
        }
        let mapping = self.map(&held, region)?;
        // Without a channel the mapping cannot stay once the block is let go. It is opened last, as mapping may need the last
        // descriptors that this process may open.
        if let Err(error) = self.link.owner.open_channel(&self.message(Ask::Channel, 0, 0)) {
            debug!(target: MEMORY, "attached memory will not stay mapped: {error}");
        }
        Ok(mapping_cache::add(mapping, self.token.block, &held))
    }

    /// Has the stream wait for what was submitted before the block was shared: the events that came along, and the others.
    fn wait(&self, held: &HeldBlock, names: &[[u8; 64]], stream: &Stream) -> Result<()> {
        let wait_for = |exported| stream.wait(&Event::import(stream.device(), exported)?);
        for name in names {
            wait_for(ExportedEvent { name: *name, descriptor: None })?;
        }
        let mut from = names.len() as u32;
        while from < held.events {
            let count = (held.events - from).min(DESCRIPTORS as u32);
            let (names, descriptors) = self.ask(Ask::Events, from.into(), count)?;
            let mut descriptors = descriptors.into_iter();
            for name in names.as_chunks::<64>().0 {
                wait_for(ExportedEvent { name: *name, descriptor: descriptors.next() })?;
            }
            from += count;
        }
        Ok(())
    }

    /// Maps the region of the block.
    fn map(&self, held: &HeldBlock, region: RegionKey) -> Result<AttachedMapping> {
        let all = self.described(held.extents as usize)?;
        let bytes = all.iter().try_fold(0_u64, |sum, each| sum.checked_add(each.bytes));
        let is_inside = held.lead.checked_add(held.bytes).is_some_and(|end| bytes.is_some_and(|bytes| end <= bytes));
        if !is_inside {
            return Err(Error::internal("a shared block does not lie in its region"));
        }
        let known: Vec<_> = all.iter().map(|each| ImportedExtent::known(&self.link.owner, each.extent)).collect();
        let missing: Vec<_> = (0..all.len()).filter(|at| known[*at].is_none()).collect();
        let mut imported = self.import(&all, &missing)?.into_iter();
        let extents = known.into_iter().zip(&all);
        let extents = extents.map(|(known, each)| Some((known.or_else(|| imported.next())?, each.bytes)));
        let extents = extents.collect::<Option<_>>().ok_or_else(|| Error::internal("an extent was not taken up"))?;
        AttachedMapping::map(self.memory, self.home, &self.link.owner, region, extents)
    }

    /// Returns so many extents as their owner describes them.
    fn described(&self, extents: usize) -> Result<Vec<DescribedExtent>> {
        let mut all = Vec::new();
        while all.len() < extents {
            let count = (extents - all.len()).min(DESCRIBED) as u32;
            let (packet, _) = self.ask(Ask::Describe, all.len() as u64, count)?;
            match described(&packet).filter(|described| !described.is_empty()) {
                Some(described) => all.extend(described),
                None => return Err(Error::internal("a process that shares memory describes less than it has")),
            }
        }
        Ok(all)
    }

    /// Imports the extents at the given places of the list.
    fn import(&self, all: &[DescribedExtent], missing: &[usize]) -> Result<Vec<Arc<ImportedExtent>>> {
        // One message asks for a run. The first run is short, as nothing can be imported before it is here.
        let (first, rest) = missing.split_at(missing.len().min(SIDE_BY_SIDE));
        let runs = [first, rest].into_iter().flat_map(|part| part.chunk_by(|one, next| one + 1 == *next));
        let mut runs = runs.flat_map(|run| run.chunks(DESCRIPTORS));
        let (mut imported, mut asked) = (Vec::new(), VecDeque::new());
        loop {
            while asked.len() < SIDE_BY_SIDE
                && let Some(run) = runs.next()
            {
                self.send(Ask::Extents, run[0] as u64, run.len() as u32)?;
                asked.push_back(run);
            }
            let Some(run) = asked.pop_front() else { return Ok(imported) };
            if let Err(error) = self.import_run(all, run, &mut imported) {
                // The answers that are still on their way must not be read as those to later messages.
                asked.iter().for_each(|_| drop(self.link.answer()));
                return Err(error);
            }
        }
    }

    /// Imports the extents whose descriptors come with one answer, and closes these.
    fn import_run(
        &self,
        all: &[DescribedExtent],
        run: &[usize],
        imported: &mut Vec<Arc<ImportedExtent>>,
    ) -> Result<()> {
        let (_, descriptors) = self.link.answer()?;
        if descriptors.len() != run.len() {
            return Err(Error::internal("a process that shares memory sent fewer descriptors than it has extents"));
        }
        for (at, descriptor) in run.iter().zip(descriptors) {
            let number = all[*at].extent;
            imported.push(ImportedExtent::new(&self.link.owner, number, self.memory.device, descriptor.as_fd())?);
        }
        Ok(())
    }
}
