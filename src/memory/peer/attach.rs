//! How a block that another process shares is attached: its owner notes that this process holds it, the stream waits
//! for the owner's events, and the block's region is found in the mapping cache, or mapped. If any of this fails, the
//! block is let go and what was mapped is unmapped. What the owner says of its memory is checked as far as it could
//! harm this process.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use log::debug;
use rustix::process::geteuid;

use super::attached::{AttachedBuffer, Attachment, BlockHold};
use super::codec::{Answer, BlockQuestion, DESCRIBED, DESCRIPTORS, EVENT_NAME, HeldBlock, Question, extents_in};
use super::mapping::{AttachedMapping, ImportedExtent, RegionKey};
use super::mapping_cache::{self, MappedBlock};
use super::owner::{Link, OwnerAnswer, OwnerProcess, unknown};
use super::token::{ShareToken, TokenFields, device_with};
use super::{service, tasks};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::device::{DescribedExtent, DeviceMemory, reaches};
use crate::memory::serve::device_caches;
use crate::memory::shared_block::find;
use crate::memory::tuning::SIDE_BY_SIDE;
use crate::observe::target::MEMORY;
use crate::process;
use crate::runtime::{self, DeviceUuid, Event, ExportedEvent, KnownUuids, Stream, get};

/// Attaches a block for the given device or that of the stream, and makes the stream wait for what was submitted before
/// the block was shared.
///
/// # Errors
/// `ErrorKind::InvalidValue` for a token of elsewhere, a block that was freed, a device that cannot reach the memory,
/// or a captured stream; `ErrorKind::Unavailable` if its owner has ended or does not answer, or the system has no
/// descriptor left; `ErrorKind::Library` if the driver refuses. All is as before then.
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
    let buffer = if service::start()? == fields.name {
        attach_own(&fields, memory, &stream)?
    } else {
        attach_others(&fields, owned_by, memory, &stream)?
    };
    Ok((buffer, stream))
}

/// Attaches a block of this process itself: the same memory, kept until this use is freed as well.
fn attach_own(token: &TokenFields, memory: &'static DeviceMemory, stream: &Stream) -> Result<AttachedBuffer> {
    let block = find(token.key.block).filter(|block| block.secret.is(&token.key.secret.0));
    let held = block.and_then(|block| Some((block.hold(token.in_flight)?, block)));
    let (hold, block) = held.ok_or_else(|| {
        Error::invalid_value(format!(
            "process {} has freed the buffer, or never shared it: keep it there until it was attached",
            token.process
        ))
    })?;
    let source = block.memory().device()?;
    check(token, block.bytes, KnownUuids::Devices.of(source)?)?;
    if memory.location != source {
        return Err(Error::invalid_value(format!(
            "the buffer is this process's own, on {source}: use it on another device after enable_peer_access"
        )));
    }
    block.place()?;
    block.events().iter().try_for_each(|event| stream.wait(event))?;
    block.arrived(token.in_flight);
    Ok(AttachedBuffer::new(BlockHold::Own(hold), block.block.address(), token.bytes, memory, stream))
}

/// Refuses a token that differs from its block.
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

fn attach_others(
    token: &TokenFields,
    source: Device,
    memory: &'static DeviceMemory,
    stream: &Stream,
) -> Result<AttachedBuffer> {
    let (link, in_flight) = (OwnerProcess::of(token).connect(token)?, token.in_flight);
    let held = link.ask(BlockQuestion::Hold { in_flight })?;
    let attaching = Attaching { link, source, memory };
    match attaching.find_or_map(held, stream) {
        Ok(block) => {
            if in_flight > 0 {
                // If the owner has ended, nothing is to be sent.
                let _ = attaching.link.send(BlockQuestion::Arrived { in_flight });
            }
            let address = block.address;
            let attachment =
                Attachment { block, source, owner: attaching.link.put_back(), key: token.key, ending: None };
            Ok(AttachedBuffer::new(BlockHold::Others(attachment), address, token.bytes, memory, stream))
        }
        Err(error) => {
            // The connection is closed, as answers may still come by it.
            let owner = attaching.link.owner;
            let let_go = Question::OfBlock(token.key, BlockQuestion::LetGo { mapping: 0 });
            tasks::now_or_later(move || Ok(owner.notify(&let_go)));
            Err(error)
        }
    }
}

#[derive(Debug)]
struct Attaching {
    link: Link,
    /// The device that has the block.
    source: Device,
    /// Of the device that it is attached for.
    memory: &'static DeviceMemory,
}

impl Attaching {
    /// Makes the stream wait for the owner's events, and returns the block in its region's mapping. `answer` is that to
    /// [`BlockQuestion::Hold`].
    fn find_or_map(&self, (answer, descriptors): OwnerAnswer, stream: &Stream) -> Result<MappedBlock> {
        let Answer::Held(held, names) = answer else { return Err(unknown()) };
        self.wait_for(&names, descriptors?, stream)?;
        for from in ((names.len() / EVENT_NAME) as u64..held.events).step_by(DESCRIPTORS) {
            let (Answer::Events(names), descriptors) = self.link.ask(BlockQuestion::Events { from })? else {
                return Err(unknown());
            };
            self.wait_for(&names, descriptors?, stream)?;
        }
        let Link { owner, token, .. } = &self.link;
        check(token, held.bytes, held.device)?;
        let region = RegionKey { owner: owner.name, region: held.region, location: self.memory.location };
        if let Some(block) = mapping_cache::find(&region, token.key.block, &held) {
            return Ok(block);
        }
        let mapping = self.map(&held, region)?;
        // Without a channel the mapping cannot stay once the block is let go. It is opened last, as mapping may need
        // the last descriptors that this process may open.
        if let Err(error) = owner.open_channel(token) {
            debug!(target: MEMORY, "attached memory will not stay mapped: {error}");
        }
        Ok(mapping_cache::add(mapping, token.key.block, &held))
    }

    /// Makes the stream wait for events with these names and descriptors.
    fn wait_for(&self, names: &[u8], descriptors: Vec<OwnedFd>, stream: &Stream) -> Result<()> {
        let mut descriptors = descriptors.into_iter();
        names.as_chunks().0.iter().try_for_each(|name| {
            let exported = ExportedEvent { name: *name, descriptor: descriptors.next() };
            stream.wait(&Event::import(stream.device(), exported)?)
        })
    }

    fn map(&self, held: &HeldBlock, region: RegionKey) -> Result<AttachedMapping> {
        let all = self.described(held.extents)?;
        let bytes = all.iter().try_fold(0_u64, |sum, each| sum.checked_add(each.bytes));
        let is_inside = held.lead.checked_add(held.bytes).is_some_and(|end| bytes.is_some_and(|bytes| end <= bytes));
        if !is_inside {
            return Err(Error::internal("a shared block does not lie in its region"));
        }
        let owner = &self.link.owner;
        let mut imported: Vec<_> = all.iter().map(|each| ImportedExtent::known(owner, each.extent)).collect();
        self.import(&all, &mut imported)?;
        let extents = imported.into_iter().flatten().zip(all.iter().map(|each| each.bytes)).collect();
        let mut mapping = AttachedMapping::new(self.memory, owner, region);
        if let Err(error) = mapping.map(self.source, extents) {
            mapping.end_now_or_later();
            return Err(error);
        }
        Ok(mapping)
    }

    /// Returns the descriptions of so many extents by their owner.
    fn described(&self, extents: u64) -> Result<Vec<DescribedExtent>> {
        let mut all = Vec::new();
        for from in (0..extents).step_by(DESCRIBED) {
            let (Answer::Described(described), _) = self.link.ask(BlockQuestion::Describe { from })? else {
                return Err(unknown());
            };
            all.extend(extents_in(&described));
        }
        if all.len() as u64 == extents {
            Ok(all)
        } else {
            Err(Error::internal("a process that shares memory describes other extents than it has"))
        }
    }

    /// Imports the extents that are missing.
    fn import(&self, all: &[DescribedExtent], imported: &mut [Option<Arc<ImportedExtent>>]) -> Result<()> {
        let missing: Vec<_> = (0..all.len()).filter(|at| imported[*at].is_none()).collect();
        // Each message asks for a run. The first one is short, as nothing can be imported before it is here.
        let (first, rest) = missing.split_at(missing.len().min(SIDE_BY_SIDE));
        let runs = [first, rest].into_iter().flat_map(|part| part.chunk_by(|one, next| one + 1 == *next));
        let mut runs = runs.flat_map(|run| run.chunks(DESCRIPTORS));
        let mut asked = VecDeque::new();
        loop {
            while asked.len() < SIDE_BY_SIDE
                && let Some(run) = runs.next()
            {
                self.link.send(BlockQuestion::Extents { from: run[0] as u64, count: run.len() as u32 })?;
                asked.push_back(run);
            }
            let Some(run) = asked.pop_front() else { return Ok(()) };
            let descriptors = self.link.answer()?.1?;
            if descriptors.len() != run.len() {
                return Err(Error::internal("a process that shares memory sent fewer descriptors than it has extents"));
            }
            for (at, descriptor) in run.iter().zip(descriptors) {
                let (owner, number) = (&self.link.owner, all[*at].extent);
                imported[*at] = Some(ImportedExtent::new(owner, number, self.memory.location, descriptor.as_fd())?);
            }
        }
    }
}
