//! `record_memory_history`, with the parameters of `torch.cuda.memory._record_memory_history`, and snapshots.

use std::collections::HashMap;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList};

use crate::error::Error;
use crate::handle::HandleEvent;
use crate::ids::{Device, MemoryLocation};
use crate::memory::{BlockView, MemoryAction, MemoryEvent, PoolId, SegmentView, device_of_pool};
use crate::observe::recording::Stack;
use crate::python::arguments::{MaxEntries, Whole, wrong_argument};
use crate::python::ffi::stacks;
use crate::python::holder::holders_by_device;
use crate::recording::{self, MAX_ENTRIES, Recording, StackContext};
use crate::runtime::{get, is_chosen};

fn invalid(name: &str, value: &str, valid: &str) -> PyErr {
    Error::invalid_value(format!("{name}={value:?} is not valid: give {valid}")).into()
}

/// Whether events are kept; none to stop.
fn has_events(enabled: &Bound<'_, PyAny>) -> PyResult<Option<bool>> {
    if enabled.is_none() {
        return Ok(None);
    }
    match enabled.extract() {
        Ok("all") => Ok(Some(true)),
        Ok("state") => Ok(Some(false)),
        // PyTorch's former call has a bool here, and other parameters.
        _ => Err(wrong_argument("enabled", enabled, "'all' or 'state', or None to stop").into()),
    }
}

/// What stacks are taken for, by name.
const CONTEXTS: [(Option<&str>, StackContext); 4] = [
    (None, StackContext::None),
    (Some("state"), StackContext::State),
    (Some("alloc"), StackContext::Alloc),
    (Some("all"), StackContext::All),
];

fn action_of(name: &str) -> PyResult<MemoryAction> {
    let known = MemoryAction::ALL.into_iter().find(|action| action.name() == name);
    known.ok_or_else(|| invalid("skip_actions", name, &MemoryAction::ALL.map(MemoryAction::name).join(", ")))
}

#[doc = docstring!("record_memory_history")]
#[pyfunction(signature = (
    enabled = Some(true), context = "all", stacks = "python", max_entries = Whole::new(MAX_ENTRIES as u64),
    clear_history = false, skip_actions = None
), text_signature = "(enabled='all', context='all', stacks='python', max_entries=..., clear_history=False, skip_actions=None)")]
pub(crate) fn record_memory_history(
    py: Python<'_>,
    #[pyo3(from_py_with = has_events)] enabled: Option<bool>,
    context: Option<&str>,
    stacks: &str,
    max_entries: Whole<MaxEntries>,
    clear_history: bool,
    skip_actions: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let names = skip_actions.map(|names| match names.extract::<Vec<String>>() {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            Err(wrong_argument("skip_actions", names, "a list of names of events, or None").into())
        }
        extracted => extracted,
    });
    let names = names.transpose()?.unwrap_or_default();
    let skipped = names.iter().map(|name| action_of(name)).collect::<PyResult<Vec<_>>>()?;
    let Some((_, context)) = CONTEXTS.into_iter().find(|(name, _)| *name == context) else {
        return Err(invalid("context", context.unwrap_or_default(), "'state', 'alloc', 'all' or None"));
    };
    if stacks != "python" {
        return Err(invalid("stacks", stacks, "'python': gpupool records no frames of C++"));
    }
    let Some(has_events) = enabled else {
        py.detach(Recording::stop)?;
        stacks::clear(py);
        return Ok(());
    };
    let recording = Recording::new()
        .events(has_events)
        .context(context)
        .max_entries(usize::try_from(max_entries.0).unwrap_or(usize::MAX))
        .clear_history(clear_history)
        .skip(skipped);
    Ok(py.detach(|| recording.start_with_stacks(Some(stacks::stack_callback())))?)
}

#[doc = docstring!("get_memory_history")]
#[pyfunction]
pub(crate) fn get_memory_history(py: Python<'_>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(recording) = py.detach(Recording::running)? else { return Ok(None) };
    Ok(Some(with_items!(PyDict::new(py), {
        "enabled": if recording.has_events() { "all" } else { "state" },
        "context": CONTEXTS.iter().find(|(_, context)| *context == recording.stacks()).and_then(|(name, _)| *name),
        "max_entries": recording.most(),
        "skip_actions": recording.skipped().map(MemoryAction::name).collect::<Vec<_>>(),
    })))
}

// Snapshots in the form of `torch.cuda.memory._snapshot`, to the key, so that PyTorch's viewers open them.
//
// `handle_events`, `holders`, what is of pinned memory, `is_asleep` of a segment and `thread` in each event are gpupool's
// own; the viewers pass over them.

/// Blocks up to this size are what PyTorch calls small, and the segments of its small blocks are this large.
const SMALL_SEGMENT: u64 = 2 << 20;

/// Call stacks as lists of frames, each made once: what shares a stack shares its list, also in a pickle.
pub(crate) struct Frames<'py> {
    py: Python<'py>,
    of_stacks: HashMap<Stack, Bound<'py, PyList>>,
    of_places: HashMap<(usize, i32), Bound<'py, PyDict>>,
}

impl<'py> Frames<'py> {
    pub(crate) fn new(py: Python<'py>) -> Self {
        Self { py, of_stacks: HashMap::new(), of_places: HashMap::new() }
    }

    /// The frames of a stack, the innermost first.
    fn of(&mut self, stack: Stack) -> PyResult<Bound<'py, PyList>> {
        if let Some(known) = self.of_stacks.get(&stack) {
            return Ok(known.clone());
        }
        let list = PyList::empty(self.py);
        for (code, lasti) in stacks::places(self.py, stack) {
            let key = (code.as_ptr().addr(), lasti);
            let known = self.of_places.get(&key).cloned();
            let frame = known.map_or_else(|| frame(self.py, code.bind(self.py), lasti), Ok)?;
            list.append(&frame)?;
            self.of_places.insert(key, frame);
        }
        self.of_stacks.insert(stack, list.clone());
        Ok(list)
    }
}

fn frame<'py>(py: Python<'py>, code: &Bound<'py, PyAny>, lasti: i32) -> PyResult<Bound<'py, PyDict>> {
    // What Python says of a code object, and not how it stores it: start, end and line of each run of instructions.
    let mut line = code.getattr(intern!(py, "co_firstlineno"))?.extract::<i64>()?;
    for run in code.call_method0(intern!(py, "co_lines"))?.try_iter()? {
        let (start, end, of_run): (i32, i32, Option<i64>) = run?.extract()?;
        if (start..end).contains(&lasti) {
            line = of_run.unwrap_or(line);
            break;
        }
    }
    Ok(with_items!(PyDict::new(py), {
        "name": code.getattr(intern!(py, "co_name"))?,
        "filename": code.getattr(intern!(py, "co_filename"))?,
        "line": line,
    }))
}

const fn state(block: &BlockView) -> &'static str {
    match block {
        BlockView { is_waiting: true, .. } => "active_pending_free",
        BlockView { is_live: true, .. } => "active_allocated",
        _ => "inactive",
    }
}

fn segment<'py>(frames: &mut Frames<'py>, view: &SegmentView) -> PyResult<Bound<'py, PyDict>> {
    let py = frames.py;
    let blocks = PyList::empty(py);
    let (mut allocated, mut active, mut requested) = (0, 0, 0);
    for block in &view.blocks {
        blocks.append(with_items!(PyDict::new(py), {
            "address": block.address,
            "size": block.nbytes,
            "requested_size": block.requested,
            "state": state(block),
            "frames": frames.of(block.stack)?,
        }))?;
        if block.is_live {
            active += block.nbytes;
            requested += block.requested;
        }
        if block.is_live && !block.is_waiting {
            allocated += block.nbytes;
        }
    }
    let entry = match view.location {
        MemoryLocation::Device(device) => with_items!(PyDict::new(py), { "device": device, }),
        MemoryLocation::Host(node) => with_items!(PyDict::new(py), { "numa": node.number(), }),
    };
    if view.is_asleep {
        entry.set_item(intern!(py, "is_asleep"), true)?;
    }
    Ok(with_items!(entry, {
        "address": view.address,
        "total_size": view.nbytes,
        "allocated_size": allocated,
        "active_size": active,
        "requested_size": requested,
        "stream": view.stream,
        // gpupool has no such types: by the size, as PyTorch's are.
        "segment_type": if view.nbytes <= SMALL_SEGMENT { "small" } else { "large" },
        "segment_pool_id": view.pool,
        "is_expandable": view.is_movable,
        "frames": frames.of(view.stack)?,
        "blocks": blocks,
    }))
}

/// Segments with their blocks.
pub(crate) fn list_of_segments<'a, 'py>(
    frames: &mut Frames<'py>,
    views: impl IntoIterator<Item = &'a SegmentView>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    views.into_iter().map(|view| segment(frames, view)).collect()
}

fn trace_entry<'py>(frames: &mut Frames<'py>, event: &MemoryEvent) -> PyResult<Bound<'py, PyDict>> {
    let py = frames.py;
    let entry = with_items!(PyDict::new(py), { "action": event.action.name(), });
    let address = match event.action {
        MemoryAction::Oom => intern!(py, "device_free"),
        _ => intern!(py, "addr"),
    };
    entry.set_item(address, event.address)?;
    Ok(with_items!(entry, {
        "size": event.nbytes,
        "stream": event.stream,
        "time_us": event.unix_micros(),
        "compile_context": intern!(py, "N/A"),
        "user_metadata": intern!(py, ""),
        "pool_id": event.pool,
        "thread": event.thread,
        "frames": frames.of(event.stack)?,
    }))
}

/// Returns a list for each device of the process, as PyTorch has it, and the events of pinned memory, each with its NUMA node.
fn traces<'py>(
    frames: &mut Frames<'py>,
    devices: usize,
    events: &[MemoryEvent],
) -> PyResult<(Vec<Bound<'py, PyList>>, Bound<'py, PyList>)> {
    let of_devices: Vec<_> = (0..devices).map(|_| PyList::empty(frames.py)).collect();
    let pinned = PyList::empty(frames.py);
    for event in events {
        match event.location {
            MemoryLocation::Device(device) => {
                if let Some(trace) = of_devices.get(device.ordinal()) {
                    trace.append(trace_entry(frames, event)?)?;
                }
            }
            MemoryLocation::Host(node) => {
                pinned.append(with_items!(trace_entry(frames, event)?, { "numa": node.number(), }))?;
            }
        }
    }
    Ok((of_devices, pinned))
}

fn handle_event<'py>(py: Python<'py>, event: &HandleEvent) -> PyResult<Bound<'py, PyDict>> {
    Ok(with_items!(PyDict::new(py), {
        "time_us": event.unix_micros(),
        "library": event.library,
        "device": event.device,
        "action": event.action.name(),
        "handle": event.handle,
        "thread": event.thread,
    }))
}

/// PyTorch's settings, with the values that say how gpupool behaves: none of them changes that.
fn allocator_settings(py: Python<'_>, has_expandable: bool) -> PyResult<Bound<'_, PyDict>> {
    let divisions = (0..16).map(|power| ((1 << power).to_string(), 0)).into_py_dict(py)?;
    Ok(with_items!(PyDict::new(py), {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": has_expandable,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": true,
        "pinned_use_cuda_host_register": false,
        "graph_capture_record_stream_reuse": false,
        "roundup_power2_divisions": divisions,
        "allocator": concat!("gpupool ", env!("CARGO_PKG_VERSION")),
    }))
}

/// The pool that an argument names by its id; none for every pool.
fn pool_of(id: &Bound<'_, PyAny>) -> PyResult<Option<PoolId>> {
    match id.extract::<PoolId>() {
        Ok(id) => Ok(Some(id).filter(|id| *id != PoolId::NONE)),
        Err(error) if error.is_instance_of::<PyTypeError>(id.py()) => {
            let wrong =
                format!("mempool_id must be a pool's id, a pair of numbers, not {id}; a device is given as device=");
            Err(Error::invalid_value(wrong).into())
        }
        Err(error) => Err(error),
    }
}

#[doc = docstring!("memory_snapshot")]
#[pyfunction(signature = (mempool_id = None, include_traces = true, *, device = None))]
pub(crate) fn memory_snapshot<'py>(
    py: Python<'py>,
    mempool_id: Option<&Bound<'py, PyAny>>,
    include_traces: bool,
    mut device: Option<Device>,
) -> PyResult<Bound<'py, PyDict>> {
    let pool = mempool_id.map(pool_of).transpose()?.flatten();
    if let Some(pool) = pool {
        device = device_of_pool(pool, device)?.or(device);
    }
    let mut taken = py.detach(|| recording::snapshot(device))?;
    if let Some(pool) = pool {
        taken.memory.segments.retain(|segment| segment.pool == pool);
        taken.memory.events.retain(|event| event.pool == pool);
        // No handle is of a pool of memory, nor is what others hold.
        taken.handle_events.clear();
        taken.holders.clear();
    }
    if !include_traces {
        taken.memory.events.clear();
        taken.handle_events.clear();
    }
    let (views, events) = (&taken.memory.segments, &taken.memory.events);
    // No driver is touched for this.
    let devices = if is_chosen() { get()?.device_count() as usize } else { 0 };
    let frames = &mut Frames::new(py);
    let (pinned, of_devices): (Vec<_>, Vec<_>) = views.iter().partition(|view| view.location.device().is_none());
    let has_expandable = of_devices.iter().all(|view| view.is_movable);
    let segments = list_of_segments(frames, of_devices)?;
    let (device_traces, pinned_trace) = traces(frames, devices, events)?;
    let handle_events = taken.handle_events.iter().map(|event| handle_event(py, event));
    Ok(with_items!(PyDict::new(py), {
        "segments": segments,
        "device_traces": device_traces,
        "pinned_segments": list_of_segments(frames, pinned)?,
        "pinned_trace": pinned_trace,
        "allocator_settings": allocator_settings(py, has_expandable)?,
        "external_annotations": PyList::empty(py),
        "handle_events": handle_events.collect::<PyResult<Vec<_>>>()?,
        "holders": holders_by_device(py, taken.holders)?,
    }))
}
