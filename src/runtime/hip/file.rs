//! Finds `libamdhip64`: a copy that the process has, wheels, conda, the toolkit, the system. Its file name has the
//! major version of HIP. A second copy is never loaded, since each has devices, streams and memory of its own.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::shared_object::{IF_LOADED, Library, NOW, is_absent, open};
use crate::site_packages;

/// The names, newest first.
const SONAMES: [&str; 4] = ["libamdhip64.so.8", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"];
/// Names the only file or folder to look at.
const VARIABLE: &str = "GPUPOOL_AMDHIP64_PATH";

struct Unopened {
    /// Each file, with the linker's reason.
    tried: String,
    /// Whether one of the files exists.
    is_present: bool,
}

impl From<Unopened> for Error {
    fn from(Unopened { tried, is_present }: Unopened) -> Self {
        if is_present {
            Error::runtime_broken("hip", format!("HIP's library cannot be loaded ({tried}); install ROCm again"))
        } else {
            let reason =
                format!("no HIP library was found ({tried}); install ROCm, or run on a machine with an AMD GPU");
            Error::runtime_unavailable("hip", reason)
        }
    }
}

/// Opens the library, and returns it with the file that was opened.
///
/// # Errors
/// `ErrorKind::RuntimeUnavailable` with what was tried, as a library that is broken if a file is there, or was named.
pub(super) fn open_first() -> Result<(Library, PathBuf), Error> {
    if let Some(wanted) = std::env::var_os(VARIABLE).filter(|wanted| !wanted.is_empty()).map(PathBuf::from) {
        let files = if wanted.is_dir() { in_folder(&wanted) } else { vec![wanted] };
        return first_of(files).map_err(|Unopened { tried, .. }| {
            let reason = format!("no HIP library was found ({tried}, from {VARIABLE}); name another file, or unset it");
            Error::runtime_broken("hip", reason)
        });
    }
    for soname in SONAMES {
        if let Ok(library) = open(Path::new(soname), IF_LOADED) {
            return Ok((library, soname.into()));
        }
    }
    // In the order of the search for libraries, since those of a wheel work with that wheel's HIP. PyTorch's has no
    // version in its name.
    let torch = site_packages::below("torch/lib").into_iter().map(|folder| folder.join("libamdhip64.so"));
    let wheels = site_packages::below("_rocm_sdk_core*/lib").into_iter().flat_map(|folder| in_folder(&folder));
    let conda = site_packages::variables(["CONDA_PREFIX"]).map(|root| root.join("lib"));
    let toolkit = site_packages::variables(["ROCM_PATH", "HIP_PATH"]).map(|root| root.join("lib"));
    let here = wheels.chain(torch).chain(conda.chain(toolkit).flat_map(|folder| in_folder(&folder)));
    let elsewhere = SONAMES.map(PathBuf::from).into_iter().chain(in_folder(Path::new("/opt/rocm/lib")));
    Ok(first_of(here.filter(|file| file.exists()).chain(elsewhere))?)
}

fn in_folder(folder: &Path) -> Vec<PathBuf> {
    SONAMES.iter().map(|soname| folder.join(soname)).collect()
}

fn first_of(files: impl IntoIterator<Item = PathBuf>) -> Result<(Library, PathBuf), Unopened> {
    let (mut tried, mut is_present) = (Vec::new(), false);
    for file in files {
        match open(&file, NOW) {
            Ok(library) => return Ok((library, file)),
            Err(reason) => {
                is_present |= !is_absent(&file, &reason);
                tried.push(reason);
            }
        }
    }
    Err(Unopened { tried: tried.join("; "), is_present })
}
