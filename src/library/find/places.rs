//! Where a library may be: the folders of wheels, conda, the toolkit and the system.

use std::path::{Path, PathBuf};

use super::component::Variant;
use super::origin::Origin;
use crate::runtime::Kind;
use crate::site_packages::{self, variables};

/// A kind of place. Each is looked through for every version of CUDA before the next, so that what a user installed for a
/// program comes before what the machine has for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SearchPlace {
    Wheels,
    Conda,
    /// `CUDA_HOME` and `CUDA_PATH`, `ROCM_PATH` and `HIP_PATH`.
    Toolkit,
    /// A bare name: the dynamic linker's own search, `LD_LIBRARY_PATH` included.
    Linker,
    /// Where the toolkit's installer puts it.
    Installed,
}

impl SearchPlace {
    /// In the order to look.
    pub(super) const ALL: [SearchPlace; 5] =
        [SearchPlace::Wheels, SearchPlace::Conda, SearchPlace::Toolkit, SearchPlace::Linker, SearchPlace::Installed];

    pub(super) const fn origin(self) -> Origin {
        match self {
            SearchPlace::Wheels => Origin::Wheel,
            SearchPlace::Conda => Origin::Conda,
            SearchPlace::Toolkit | SearchPlace::Installed => Origin::Toolkit,
            SearchPlace::Linker => Origin::System,
        }
    }

    /// Returns the files that could be the variant. Bare names are for the linker to find.
    pub(super) fn files(self, platform: Kind, variant: &Variant) -> Vec<PathBuf> {
        let folders = match self {
            SearchPlace::Wheels => variant.folders.iter().flat_map(|folder| site_packages::below(folder)).collect(),
            SearchPlace::Conda => site_packages::all().iter().filter_map(|packages| conda_folder(packages)).collect(),
            SearchPlace::Toolkit => {
                let roots = if platform == Kind::Hip { ["ROCM_PATH", "HIP_PATH"] } else { ["CUDA_HOME", "CUDA_PATH"] };
                variables(roots).flat_map(|root| [root.join("lib64"), root.join("lib")]).collect()
            }
            SearchPlace::Linker => vec![PathBuf::new()],
            SearchPlace::Installed => match (platform, variant.cuda) {
                (Kind::Hip, _) => vec!["/opt/rocm/lib".into()],
                (_, Some(cuda)) => {
                    vec![format!("/usr/local/cuda-{cuda}/lib64").into(), "/usr/local/cuda/lib64".into()]
                }
                (_, None) => vec!["/usr/local/cuda/lib64".into()],
            },
        };
        folders.iter().flat_map(|folder| variant.sonames.iter().map(move |soname| folder.join(soname))).collect()
    }
}

/// Conda puts libraries in `<environment>/lib`, and packages in `<environment>/lib/python3.x/site-packages`.
fn conda_folder(packages: &Path) -> Option<PathBuf> {
    packages.ends_with("site-packages").then(|| packages.ancestors().nth(2).map(Path::to_owned)).flatten()
}
