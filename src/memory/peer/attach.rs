//! How a block that another process shares is attached and let go. Its owner notes that this process holds it, the stream waits
//! for the owner's events, and the block's region is found in the mapping cache, or mapped. If any of this fails, the
//! block is let go and what was mapped is unmapped. What the owner says of its memory is checked as far as it could
//! harm this process.
//!
//! Once a buffer of it is freed, the thread that talks to other processes lets the memory go as soon as its work is done: no
//! caller waits, and the owner can reuse the memory at once. The memory stays mapped for the next time, or is unmapped.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use log::debug;
use rustix::process::geteuid;

use super::codec::{
    Answer, BlockKey, BlockQuestion, DESCRIBED, DESCRIPTORS, EVENT_NAME, HeldBlock, Question, extents_in,
};
use super::mapping_cache::{self, AttachedMapping, ImportedExtent, MappedBlock, RegionKey};
use super::owner::{Link, OwnerAnswer, OwnerProcess, unknown};
use super::token::{ShareToken, TokenFields, device_with};
use super::{service, tasks};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::cache::{BlockUser, Waiting};
use crate::memory::device::{DescribedExtent, DeviceMemory, Patience, reaches};
use crate::memory::serve::device_caches;
use crate::memory::shared_block::{Hold, find};
use crate::memory::tuning::SIDE_BY_SIDE;
use crate::observe::target::MEMORY;
use crate::process;
use crate::runtime::{self, DeviceUuid, Event, ExportedEvent, KnownUuids, Stream, get};
use crate::sync::{ThisThread, lock};

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
            check_part(names.len() / EVENT_NAME, DESCRIPTORS, held.events - from)?;
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
            check_part(described.len(), DESCRIBED, extents - from)?;
            all.extend(extents_in(&described));
        }
        Ok(all)
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

/// Refuses a part of a list that is not as long as it could be, of which so many are left: its owner would be asked for
/// millions of others.
fn check_part(part: usize, most: usize, left: u64) -> Result<()> {
    if part as u64 == left.min(most as u64) {
        Ok(())
    } else {
        Err(Error::internal("a process that shares memory describes other extents or events than it has"))
    }
}

/// Attached memory, let go by [`AttachedBuffer::free`].
#[derive(Debug)]
pub(in crate::memory) struct AttachedBuffer {
    hold: BlockHold,
    pub(in crate::memory) address: u64,
    pub(in crate::memory) bytes: u64,
    memory: &'static DeviceMemory,
    /// Its own stream, which the thread that attached it named.
    own: BlockUser,
    users: Mutex<Vec<BlockUser>>,
}

/// What prevents the owner from reusing the memory.
#[derive(Debug)]
pub(super) enum BlockHold {
    /// A block of another process, which is held there.
    Others(Attachment),
    /// A block of this process, attached by itself.
    Own(Hold),
}

/// A block of another process, in a region that is mapped here.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) block: MappedBlock,
    /// The device that has it.
    pub(super) source: Device,
    pub(super) owner: Arc<OwnerProcess>,
    pub(super) key: BlockKey,
    /// Its mapping, once that was taken out of the cache: it ends before the block is let go.
    pub(super) ending: Option<Box<AttachedMapping>>,
}

impl Attachment {
    /// Returns what lets it go, with the number of the mapping that stays, or 0.
    const fn let_go(&self, mapping: u64) -> Question {
        Question::OfBlock(self.key, BlockQuestion::LetGo { mapping })
    }

    /// Lets the block go. Its region stays mapped if possible; otherwise it is unmapped before. False if there is no
    /// room for the message to the owner: then this is to be called again.
    ///
    /// # Errors
    /// Those of the driver; then it is to be called again, too.
    fn end(&mut self) -> Result<bool> {
        if self.ending.is_none()
            && let Some(channel) = self.owner.channel()
            && mapping_cache::may_stay(&self.block)
        {
            // If this fails, the owner could not ask for the end of the mapping any more, so that does not stay.
            if let Ok(is_sent) = channel.send(&self.let_go(self.block.mapping)) {
                if is_sent {
                    mapping_cache::end_use(&self.block, true);
                }
                return Ok(is_sent);
            }
        }
        if self.ending.is_none() {
            self.ending = mapping_cache::take_last(&self.block).map(Box::new);
        }
        if let Some(mapping) = &mut self.ending {
            mapping.end()?;
            self.ending = None;
        }
        let is_let_go = self.owner.notify(&self.let_go(0));
        if is_let_go {
            mapping_cache::end_use(&self.block, false);
        }
        Ok(is_let_go)
    }
}

impl AttachedBuffer {
    /// Attached memory that the calling thread uses on its own stream.
    pub(super) fn new(hold: BlockHold, address: u64, bytes: u64, memory: &'static DeviceMemory, own: &Stream) -> Self {
        let own = BlockUser::new(own);
        Self { hold, address, bytes, memory, own, users: Mutex::default() }
    }

    /// Refuses a stream of a device that cannot reach the memory.
    pub(in crate::memory) fn check_stream(&self, stream: &Stream) -> Result<()> {
        process::refuse_forked()?;
        let (own, other) = (self.memory.location, stream.device());
        let reaches_source = || match &self.hold {
            BlockHold::Others(attachment) => reaches(other, attachment.source),
            BlockHold::Own(_) => Ok(true),
        };
        if own == other || (self.memory.range.peers.has(other) && reaches_source()?) {
            return Ok(());
        }
        Err(Error::invalid_value(format!(
            "{:#x} was attached for {own}, and a stream of {other} cannot use it: give a stream of {own}, attach the token for \
             {other} as well, or call enable_peer_access first",
            self.address
        )))
    }

    /// Returns whether the thread can name its own stream.
    #[cfg(feature = "python")]
    pub(in crate::memory) fn is_nameable_by(&self, thread: ThisThread) -> bool {
        self.own.is_nameable_by(thread)
    }

    /// Keeps the memory, once freed, until the stream's work at that time is done.
    pub(in crate::memory) fn record_stream(&self, stream: &Stream, is_fleeting: bool) -> Result<()> {
        self.check_stream(stream)?;
        let user = BlockUser::new(stream);
        let user = if is_fleeting { user.fleeting() } else { user };
        let mut users = lock(&self.users);
        if users.iter().all(|known| !known.is(&user)) {
            users.push(user);
        }
        Ok(())
    }

    /// Lets the memory go once the work so far is done on its streams: `own`, which may be gone, and `on`.
    pub(in crate::memory) fn free(self, own: &Stream, on: Option<&Stream>) -> Result<()> {
        process::refuse_forked()?;
        let thread = ThisThread::get();
        let mut users = self.users.into_inner().unwrap_or_default();
        let on = on.map(BlockUser::new);
        // Of a stream that may be gone, another one may have the address.
        let lasts = own.is_lasting() || own.raw().is_default();
        if !(lasts && on.as_ref().is_some_and(|on| on.is(&self.own))) {
            users.push(self.own.fleeting());
        }
        users.extend(on);
        let (mut hold, memory) = (self.hold, self.memory);
        let mut until = Waiting::for_users(0, &users, &memory.events, Some(thread)).until;
        tasks::later(move || {
            Ok(until.is_done(&memory.events, Patience::Ask)?
                && match &mut hold {
                    BlockHold::Others(attachment) => attachment.end()?,
                    // It goes with this.
                    BlockHold::Own(_hold) => true,
                })
        });
        Ok(())
    }
}

const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Arc<AttachedBuffer>>();
};
