//! Waits without the GIL that end when a signal's handler raises an exception, as for Ctrl-C.
//!
//! Python runs the handlers of signals on its main thread alone, and there only when asked to. So a wait on that thread asks
//! from time to time, and a wait on any other goes on.

use pyo3::intern;
use pyo3::prelude::*;

use crate::error::Result;
use crate::sync::Interruption;

/// Returns whether the calling thread is the one on which handlers of signals run.
pub(in crate::python) fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import(intern!(py, "threading"))?;
    let main = threading.call_method0(intern!(py, "main_thread"))?.getattr(intern!(py, "ident"))?;
    main.eq(threading.call_method0(intern!(py, "get_ident"))?)
}

/// Runs without the GIL what may wait, and raises what a signal's handler raises meanwhile.
pub(in crate::python) fn interruptible<T: Send>(
    py: Python<'_>,
    run: impl FnOnce(Interruption<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    if !is_main_thread(py)? {
        return Ok(py.detach(|| run(Interruption::default()))?);
    }
    let mut raised = None;
    let outcome = py.detach(|| {
        run(Interruption::when(&mut || {
            raised = Python::try_attach(|py| py.check_signals().err()).flatten();
            raised.is_some()
        }))
    });
    match raised {
        Some(raised) => Err(raised),
        None => Ok(outcome?),
    }
}
