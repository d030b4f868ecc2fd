//! The error of a call that a library refused: the status by its name, and what it means.

use std::ffi::{CStr, c_char, c_int};

use super::description::{Description, StatusNames};
use super::entry_points::EntryPoints;
use super::find;
use crate::error::{Error, StatusKind, UNKNOWN_STATUS};
use crate::runtime::{self, DeviceCalls};

#[cold]
pub(super) fn refused(d: &Description, api: &EntryPoints, function: &CStr, code: c_int) -> Error {
    let kind = match code {
        code if d.out_of_memory.contains(&code) => StatusKind::OutOfMemory,
        code if d.not_initialized.contains(&code) => StatusKind::NotInitialized,
        _ => StatusKind::Other,
    };
    let (function, status) = (function.to_string_lossy(), status_name(d, api, code));
    Error::refused(d.component.name, &function, status, code, kind).map_library(|refused| {
        refused.path = Some(api.loaded.path().to_owned());
        refused.advice = advice(d, api, kind);
    })
}

fn status_name(d: &Description, api: &EntryPoints, code: c_int) -> String {
    let unknown = || UNKNOWN_STATUS.to_owned();
    if let Some(name) = api.status_name {
        // SAFETY: the function takes any status and returns null or a string that lives as long as the library.
        let name = unsafe { name(code) };
        if name.is_null() {
            return unknown();
        }
        // SAFETY: the name is not null, so it is a string that lives as long as the library.
        return unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    }
    let StatusNames::Table(table) = d.status_names else { return unknown() };
    table.iter().find(|(known, _)| *known == code).map_or_else(unknown, |(_, name)| (*name).to_owned())
}

/// Returns the library's message about its last error, and what to do if the driver is older than the library or not in use.
fn advice(d: &Description, api: &EntryPoints, kind: StatusKind) -> Option<String> {
    let mut advice = Vec::new();
    if let Some(last_error) = api.last_error {
        let mut message: [c_char; 512] = [0; 512];
        // SAFETY: the function writes at most the given length, with a final zero.
        unsafe { last_error(message.as_mut_ptr(), message.len() - 1) };
        // SAFETY: the last element is still zero.
        let message = unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned();
        if !message.is_empty() {
            advice.push(format!("The library says: {message}"));
        }
    }
    let platform = d.component.platform;
    let runtime = runtime::get().ok().filter(|runtime| runtime.kind() == platform);
    match (runtime.and_then(DeviceCalls::driver_version), api.loaded.cuda()) {
        (Some((major, minor)), Some(built_for)) if built_for > major => advice.push(format!(
            "The library is built for CUDA {built_for}, and this driver supports CUDA {major}.{minor}: update the driver, or install {}",
            find::package(d.component, major)
        )),
        (None, _) if kind == StatusKind::NotInitialized => {
            advice.push(format!("This process does not use the {platform} runtime, so no handle can be made"));
        }
        _ => {}
    }
    if advice.is_empty() { None } else { Some(advice.join(". ")) }
}
