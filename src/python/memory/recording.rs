//! `record_memory_history`, with the parameters of `torch.cuda.memory._record_memory_history`.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::Error;
use crate::memory::MemoryAction;
use crate::python::ffi::frames;
use crate::python::whole::{MaxEntries, Whole, wrong_argument};
use crate::recording::{MAX_ENTRIES, Recording, StackContext};

fn invalid(name: &str, value: &str, valid: &str) -> PyErr {
    Error::invalid_value(format!("{name}={value:?} is not valid: give {valid}")).into()
}

/// Whether events are kept; none to stop.
#[derive(Clone, Copy, Debug)]
pub(in crate::python) struct Enabled(Option<bool>);

impl<'py> FromPyObject<'_, 'py> for Enabled {
    type Error = PyErr;

    fn extract(enabled: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if enabled.is_none() {
            return Ok(Self(None));
        }
        match enabled.extract() {
            Ok("all") => Ok(Self(Some(true))),
            Ok("state") => Ok(Self(Some(false))),
            // PyTorch's former call has a bool here, and other parameters.
            _ => Err(wrong_argument("enabled", &enabled, "'all' or 'state', or None to stop").into()),
        }
    }
}

fn context_of(context: Option<&str>) -> PyResult<StackContext> {
    match context {
        None => Ok(StackContext::None),
        Some("state") => Ok(StackContext::State),
        Some("alloc") => Ok(StackContext::Alloc),
        Some("all") => Ok(StackContext::All),
        Some(other) => Err(invalid("context", other, "'state', 'alloc', 'all' or None")),
    }
}

const fn name_of(context: StackContext) -> Option<&'static str> {
    match context {
        StackContext::None => None,
        StackContext::State => Some("state"),
        StackContext::Alloc => Some("alloc"),
        StackContext::All => Some("all"),
    }
}

fn action_of(name: &str) -> PyResult<MemoryAction> {
    let known = MemoryAction::ALL.into_iter().find(|action| action.name() == name);
    known.ok_or_else(|| invalid("skip_actions", name, &MemoryAction::ALL.map(MemoryAction::name).join(", ")))
}

#[doc = docstring!("record_memory_history")]
#[pyfunction]
#[pyo3(signature = (
    enabled = Enabled(Some(true)), context = "all", stacks = "python", max_entries = Whole::new(MAX_ENTRIES as u64),
    clear_history = false, skip_actions = None
), text_signature = "(enabled='all', context='all', stacks='python', max_entries=..., clear_history=False, skip_actions=None)")]
pub(in crate::python) fn record_memory_history(
    py: Python<'_>,
    enabled: Enabled,
    context: Option<&str>,
    stacks: &str,
    max_entries: Whole<MaxEntries>,
    clear_history: bool,
    skip_actions: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let names = skip_actions.map(|names| {
        let wrong = |_| wrong_argument("skip_actions", names, "a list of names of events, or None").into();
        names
            .extract::<Vec<String>>()
            .map_err(|error| if error.is_instance_of::<PyTypeError>(py) { wrong(()) } else { error })
    });
    let names = names.transpose()?.unwrap_or_default();
    let skipped = names.iter().map(|name| action_of(name)).collect::<PyResult<Vec<_>>>()?;
    let context = context_of(context)?;
    if stacks != "python" {
        return Err(invalid("stacks", stacks, "'python': gpupool records no frames of C++"));
    }
    let Some(has_events) = enabled.0 else {
        py.detach(Recording::stop)?;
        frames::clear(py);
        return Ok(());
    };
    let recording = Recording::new()
        .events(has_events)
        .context(context)
        .max_entries(usize::try_from(max_entries.0).unwrap_or(usize::MAX))
        .clear_history(clear_history)
        .skip(skipped);
    Ok(py.detach(|| recording.start_with_stacks(Some(frames::stack_callback())))?)
}

#[doc = docstring!("get_memory_history")]
#[pyfunction]
pub(in crate::python) fn get_memory_history(py: Python<'_>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(recording) = py.detach(Recording::running)? else { return Ok(None) };
    let settings = PyDict::new(py);
    settings.set_item("enabled", if recording.has_events() { "all" } else { "state" })?;
    settings.set_item("context", name_of(recording.stacks()))?;
    settings.set_item("max_entries", recording.most())?;
    settings.set_item("skip_actions", recording.skipped().map(MemoryAction::name).collect::<Vec<_>>())?;
    Ok(Some(settings))
}
