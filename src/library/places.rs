//! Where a library may be: the folders of wheels, conda, the toolkit and the system.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::component::Variant;

static SITE_PACKAGES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Adds `site-packages` folders, below which wheels put their libraries.
///
/// The Python package gives Python's; a Rust program needs it only for an environment other than `VIRTUAL_ENV`.
pub fn add_site_packages(folders: impl IntoIterator<Item = PathBuf>) {
    let mut known = SITE_PACKAGES.lock().unwrap_or_else(PoisonError::into_inner);
    for folder in folders {
        if !known.contains(&folder) {
            known.push(folder);
        }
    }
}

/// A kind of place. Each is looked through for every version of CUDA before the next, so that what a user installed for a
/// program comes before what the machine has for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Wheels,
    Conda,
    /// `CUDA_HOME` and `CUDA_PATH`.
    Toolkit,
    /// A bare name: the dynamic linker's own search, `LD_LIBRARY_PATH` included.
    Linker,
    /// Where the toolkit's installer puts it.
    Installed,
}

impl Place {
    /// In the order to look.
    pub(super) const ALL: [Place; 5] = [Place::Wheels, Place::Conda, Place::Toolkit, Place::Linker, Place::Installed];

    /// The files that could be the variant. Bare names are for the linker to find.
    pub(super) fn files(self, variant: &Variant) -> Vec<PathBuf> {
        let folders = match self {
            Place::Wheels => {
                let below = |root: PathBuf| variant.folders.iter().map(move |folder| root.join(folder));
                site_packages().into_iter().flat_map(below).collect()
            }
            Place::Conda => site_packages().iter().filter_map(|packages| conda_folder(packages)).collect(),
            Place::Toolkit => {
                variables(["CUDA_HOME", "CUDA_PATH"]).flat_map(|root| [root.join("lib64"), root.join("lib")]).collect()
            }
            Place::Linker => vec![PathBuf::new()],
            Place::Installed => {
                vec![format!("/usr/local/cuda-{}/lib64", variant.cuda).into(), "/usr/local/cuda/lib64".into()]
            }
        };
        folders.iter().flat_map(|folder| variant.sonames.iter().map(move |soname| folder.join(soname))).collect()
    }
}

fn variables<const N: usize>(names: [&str; N]) -> impl Iterator<Item = PathBuf> {
    names.map(std::env::var_os).into_iter().flatten().map(PathBuf::from)
}

/// The folders given, then those of the environment that the process was started in.
fn site_packages() -> Vec<PathBuf> {
    let mut folders = SITE_PACKAGES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for environment in variables(["VIRTUAL_ENV", "CONDA_PREFIX"]) {
        let Ok(entries) = environment.join("lib").read_dir() else { continue };
        let versions = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"));
        let mut found: Vec<_> = versions.map(|entry| entry.path().join("site-packages")).collect();
        found.sort();
        found.retain(|folder| !folders.contains(folder));
        folders.append(&mut found);
    }
    folders
}

/// Conda puts libraries in `<environment>/lib`, and packages in `<environment>/lib/python3.x/site-packages`.
fn conda_folder(packages: &Path) -> Option<PathBuf> {
    packages.ends_with("site-packages").then(|| packages.ancestors().nth(2).map(Path::to_owned)).flatten()
}
