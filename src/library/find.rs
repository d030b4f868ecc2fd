//! Finds and loads a component, in the order in which a user would want it found.
//!
//! 1. `GPUPOOL_<NAME>_PATH`, a file or a folder, and nothing else if it is set.
//! 2. A copy that any code has loaded into the process: a second one is never loaded.
//! 3. Wheels, conda, the toolkit, the system: in each place first the CUDA that is in use in this process, then the newest
//!    that the driver supports, and always by a file name that carries the version.
//!
//! What a library needs is loaded first, by full path, so that it meets the copies found here.

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::{ErrorKind, Result};
use crate::runtime::{self, Kind};
use crate::shared_object::{IF_LOADED, Library, NOW, file_of, is_absent, missing_symbol, open};
use crate::site_packages::{self, variables};
use crate::sync::lock;

/// A loaded library. It is never unloaded.
#[derive(Debug)]
pub(super) struct Loaded {
    library: Library,
    pub(super) path: PathBuf,
    pub(super) origin: Origin,
    /// The major version of CUDA it was built for, if its name or folder shows that.
    pub(super) cuda: Option<u32>,
}

impl Loaded {
    /// Returns the function of this name; none in a version that lacks it.
    ///
    /// # Safety
    /// `F` is its prototype, and the result is not used after the library is gone (it is kept in a static).
    pub(super) unsafe fn function<F: Copy>(&self, name: &CStr) -> Option<F> {
        // SAFETY: the caller vouches for the type.
        unsafe { self.library.get::<F>(name) }.ok().map(|symbol| *symbol)
    }

    /// Returns the function that gets what the one of this name sets.
    ///
    /// # Safety
    /// As [`Loaded::function`].
    pub(super) unsafe fn getter<F: Copy>(&self, setter: &CStr) -> Option<F> {
        // SAFETY: the caller vouches for the type.
        unsafe { self.function(&getter(setter)?) }
    }
}

/// Returns the name of the function that gets what the one of this name sets.
pub(super) fn getter(setter: &CStr) -> Option<CString> {
    CString::new(setter.to_str().ok()?.replacen("Set", "Get", 1)).ok()
}

/// Returns the pip package that brings a component for a major version of CUDA.
pub(super) fn package(component: &Component, cuda: u32) -> &'static str {
    let variant = component.variants.iter().find(|v| v.cuda == Some(cuda)).or(component.variants.first());
    variant.map_or("", |variant| variant.package)
}

/// Loads a component that has all the symbols.
///
/// # Errors
/// `ErrorKind::LibraryNotFound` with every place tried.
pub(super) fn load(component: &'static Component, symbols: &[&CStr]) -> Result<Loaded> {
    let mut search = Search { tried: Vec::new(), is_present: false, symbols, driver: driver_major(component.platform) };
    search.find(component).ok_or_else(|| {
        let remedy = format!(
            "Install it with: pip install {}\nor set {} to its file or folder",
            package(component, search.cuda_to_install(component)),
            variable(component)
        );
        ErrorKind::LibraryNotFound {
            library: component.name,
            tried: search.tried,
            remedy,
            is_present: search.is_present,
        }
        .into()
    })
}

fn variable(component: &Component) -> String {
    format!("GPUPOOL_{}_PATH", component.name.to_uppercase())
}

/// Returns the major version of the platform that its driver supports; none without a driver.
fn driver_major(platform: Kind) -> Option<u32> {
    let runtime = runtime::get().ok().filter(|runtime| runtime.kind() == platform)?;
    runtime.driver_version().map(|(major, _)| major)
}

/// Returns a copy that is in the process already, found by the name that every copy carries inside.
fn already_loaded(soname: &str) -> Option<Library> {
    open(Path::new(soname), IF_LOADED).ok()
}

struct Search<'a> {
    tried: Vec<String>,
    /// Whether a file was there, though none that can be used.
    is_present: bool,
    symbols: &'a [&'a CStr],
    driver: Option<u32>,
}

impl Search<'_> {
    fn find(&mut self, component: &'static Component) -> Option<Loaded> {
        if let Some(wanted) = std::env::var_os(variable(component)) {
            return self.find_override(component, Path::new(&wanted));
        }
        for variant in component.variants {
            for soname in variant.sonames {
                if let Some(library) = already_loaded(soname) {
                    // Even if this copy lacks a symbol: two copies in a process would be worse.
                    return self.accept(component, library, Path::new(soname), Origin::Process);
                }
            }
        }
        let variants = self.supported_variants(component);
        candidates(component, variants).iter().find_map(|Candidate { file, variant, origin }| {
            // The linker finds what its own libraries need.
            if file.is_absolute() {
                self.try_existing(component, variant.cuda, file, *origin)
            } else {
                self.try_file(component, file, *origin)
            }
        })
    }

    /// Finds the library at the place that the user named, and nowhere else.
    fn find_override(&mut self, component: &'static Component, wanted: &Path) -> Option<Loaded> {
        let sonames = component.variants.iter().flat_map(|variant| variant.sonames);
        let files: Vec<PathBuf> =
            if wanted.is_dir() { sonames.map(|soname| wanted.join(soname)).collect() } else { vec![wanted.to_owned()] };
        files.iter().find_map(|file| {
            let newest = component.variants.first().and_then(|variant| variant.cuda);
            self.try_existing(component, cuda_of(component, file).or(newest), file, Origin::Environment)
        })
    }

    /// Tries a full path, after what the component needs.
    fn try_existing(
        &mut self,
        component: &'static Component,
        cuda: Option<u32>,
        file: &Path,
        origin: Origin,
    ) -> Option<Loaded> {
        if !file.exists() {
            self.note(format!("{}{}: no such file", file.display(), named_by(component, origin)));
            return None;
        }
        preload(component, cuda);
        self.try_file(component, file, origin)
    }

    fn try_file(&mut self, component: &'static Component, file: &Path, origin: Origin) -> Option<Loaded> {
        match open(file, NOW) {
            Ok(library) => self.accept(component, library, file, origin),
            Err(reason) => {
                self.is_present |= !is_absent(file, &reason);
                self.note(format!("{}{}: {reason}", file.display(), named_by(component, origin)));
                None
            }
        }
    }

    /// Takes the library if it has every symbol.
    fn accept(&mut self, component: &Component, library: Library, file: &Path, origin: Origin) -> Option<Loaded> {
        let path = self.symbols.iter().find_map(|symbol| file_of(&library, symbol)).unwrap_or_else(|| file.to_owned());
        if let Some(symbol) = missing_symbol(&library, self.symbols) {
            let symbol = symbol.to_string_lossy();
            let how = if origin == Origin::Process { "already loaded" } else { "loaded" };
            self.is_present = true;
            let source = named_by(component, origin);
            self.note(format!("{}{source} ({how}): lacks the symbol {symbol}, so it is too old", path.display()));
            return None;
        }
        let cuda = cuda_of(component, &path);
        let origin = if origin == Origin::Process { preloaded_from(&path).unwrap_or(origin) } else { origin };
        Some(Loaded { library, path, origin, cuda })
    }

    /// Those that the driver supports: first the CUDA that is in use in this process, then the newest.
    fn supported_variants(&mut self, component: &'static Component) -> Vec<&'static Variant> {
        let in_use = cuda_in_use();
        let mut variants: Vec<_> = component.variants.iter().collect();
        variants.sort_by_key(|variant| (variant.cuda != in_use, std::cmp::Reverse(variant.cuda)));
        if let Some(driver) = self.driver {
            for variant in variants.extract_if(.., |variant| variant.cuda > Some(driver)) {
                self.note(format!(
                    "{}: passed over, since it is built for CUDA {} and the driver supports CUDA {driver}",
                    variant.package,
                    variant.cuda.unwrap_or_default()
                ));
            }
        }
        variants
    }

    /// Returns the major version of CUDA that a missing component fits to: the one that is in use in this process, else the
    /// one that libraries beside it are installed for, else the newest that the driver supports.
    fn cuda_to_install(&self, component: &Component) -> u32 {
        let newest = component.variants.first().and_then(|variant| variant.cuda);
        let is_supported = |cuda: &u32| self.driver.is_none_or(|driver| *cuda <= driver);
        let fitting = cuda_in_use().or_else(|| cuda_installed(component)).filter(is_supported);
        fitting.or(self.driver).or(newest).unwrap_or_default()
    }

    /// Notes a place that was tried, once: two versions of CUDA may share one.
    fn note(&mut self, tried: String) {
        if !self.tried.contains(&tried) {
            self.tried.push(tried);
        }
    }
}

/// Returns what an error says of a file that the user's variable names; nothing of any other.
fn named_by(component: &Component, origin: Origin) -> String {
    if origin == Origin::Environment { format!(" (from {})", variable(component)) } else { String::new() }
}

/// Returns the major version of CUDA that other code in this process uses, if it uses just one.
fn cuda_in_use() -> Option<u32> {
    let uses = |major: u32| {
        ["cudart", "cublas", "cublasLt", "nvrtc", "nvJitLink"]
            .iter()
            .any(|stem| already_loaded(&format!("lib{stem}.so.{major}")).is_some())
    };
    match (uses(13), uses(12)) {
        (true, false) => Some(13),
        (false, true) => Some(12),
        _ => None,
    }
}

/// Returns the major version of CUDA that the libraries are built for which a component needs, or which most wheels bring,
/// if those that are installed are of just one.
fn cuda_installed(component: &Component) -> Option<u32> {
    let beside = component.needs.iter().copied().chain([&NVJITLINK, &NVRTC]);
    let mut found = beside.flat_map(|component| {
        let there = installed(component, component.variants.iter().collect());
        there.filter_map(|found| found.variant.cuda.filter(|cuda| cuda_of(component, &found.file) == Some(*cuda)))
    });
    let cuda = found.next()?;
    found.all(|other| other == cuda).then_some(cuda)
}

/// Returns the major version of CUDA that a file is built for, if its folder or name shows that.
fn cuda_of(component: &Component, file: &Path) -> Option<u32> {
    let text = file.to_string_lossy();
    let name = file.file_name()?.to_string_lossy().into_owned();
    let in_folder = |cuda: u32| text.contains(&format!("/cu{cuda}/"));
    let by_folder = component.variants.iter().find(|variant| variant.cuda.is_some_and(in_folder));
    let mut by_name = component.variants.iter().filter(|v| v.sonames.iter().any(|soname| name.starts_with(soname)));
    by_folder.or_else(|| by_name.next().filter(|_| by_name.next().is_none())).and_then(|variant| variant.cuda)
}

/// The files that [`preload`] loaded, and from where. Without this they would count as loaded by other code.
static PRELOADED: Mutex<Vec<(PathBuf, Origin)>> = Mutex::new(Vec::new());

fn preloaded_from(path: &Path) -> Option<Origin> {
    let preloaded = lock(&PRELOADED);
    preloaded.iter().find(|(file, _)| file == path).map(|(_, origin)| *origin)
}

/// Loads what a component needs, in order. A failure is left to the component's own loading, which will name it.
fn preload(component: &Component, cuda: Option<u32>) {
    for need in component.needs {
        preload(need, cuda);
        let Some(variant) = need.variants.iter().find(|variant| variant.cuda == cuda) else { continue };
        if variant.sonames.iter().any(|soname| already_loaded(soname).is_some()) {
            continue;
        }
        let mut there = installed(need, vec![variant]);
        let Some((library, found)) = there.find_map(|found| Some((open(&found.file, NOW).ok()?, found))) else {
            continue;
        };
        let file = found.file.canonicalize().unwrap_or(found.file);
        lock(&PRELOADED).push((file, found.origin));
        // It stays loaded for the life of the process.
        std::mem::forget(library);
    }
}

/// A shared library that is loaded for its own sake or because another one needs it.
#[derive(Debug)]
pub(super) struct Component {
    /// The name in errors and, in capitals, in `GPUPOOL_<NAME>_PATH`.
    pub(super) name: &'static str,
    pub(super) platform: Kind,
    /// One for each major version of CUDA, newest first.
    pub(super) variants: &'static [Variant],
    /// What must be loaded before it, in this order.
    pub(super) needs: &'static [&'static Component],
}

/// The build of a component for one major version of CUDA.
#[derive(Debug)]
pub(super) struct Variant {
    /// The major version of CUDA; none if it is for any version of its platform.
    pub(super) cuda: Option<u32>,
    /// The file names to accept, newest first. Their version is part of the name, so another ABI is never loaded.
    pub(super) sonames: &'static [&'static str],
    /// Where its wheels put it, below site-packages. The first part of the name may end in `*`.
    pub(super) folders: &'static [&'static str],
    /// The pip package that brings it.
    pub(super) package: &'static str,
}

impl Variant {
    pub(super) const fn of_cuda(
        cuda: u32,
        sonames: &'static [&'static str],
        folders: &'static [&'static str],
        package: &'static str,
    ) -> Self {
        Self { cuda: Some(cuda), sonames, folders, package }
    }

    /// Returns the one build of a library of ROCm's, which AMD's wheels bring, and PyTorch's own.
    pub(super) const fn of_rocm(sonames: &'static [&'static str]) -> Self {
        Self {
            cuda: None,
            sonames,
            folders: &["_rocm_sdk_libraries*/lib", "torch/lib"],
            package: "'rocm[libraries]' (from the index that AMD's installation guide names)",
        }
    }
}

/// The linker that cuSPARSE and cuSOLVER use at run time.
pub(super) static NVJITLINK: Component = Component {
    name: "nvjitlink",
    platform: Kind::Cuda,
    variants: &[
        Variant::of_cuda(13, &["libnvJitLink.so.13"], &["nvidia/cu13/lib"], "nvidia-nvjitlink"),
        Variant::of_cuda(12, &["libnvJitLink.so.12"], &["nvidia/nvjitlink/lib"], "nvidia-nvjitlink-cu12"),
    ],
    needs: &[],
};

/// The compiler that cuDSS uses at run time.
pub(super) static NVRTC: Component = Component {
    name: "nvrtc",
    platform: Kind::Cuda,
    variants: &[
        Variant::of_cuda(13, &["libnvrtc.so.13"], &["nvidia/cu13/lib"], "nvidia-cuda-nvrtc"),
        Variant::of_cuda(12, &["libnvrtc.so.12"], &["nvidia/cuda_nvrtc/lib"], "nvidia-cuda-nvrtc-cu12"),
    ],
    needs: &[],
};

/// A kind of place. Each is looked through for every version of CUDA before the next, so that what a user installed for a
/// program comes before what the machine has for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SearchPlace {
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
    const ALL: [SearchPlace; 5] =
        [SearchPlace::Wheels, SearchPlace::Conda, SearchPlace::Toolkit, SearchPlace::Linker, SearchPlace::Installed];

    const fn origin(self) -> Origin {
        match self {
            SearchPlace::Wheels => Origin::Wheel,
            SearchPlace::Conda => Origin::Conda,
            SearchPlace::Toolkit | SearchPlace::Installed => Origin::Toolkit,
            SearchPlace::Linker => Origin::System,
        }
    }

    /// Returns the folders that could have the variant. An empty one leaves it to the linker.
    fn folders(self, platform: Kind, variant: &Variant) -> Vec<PathBuf> {
        match self {
            SearchPlace::Wheels => variant.folders.iter().flat_map(|folder| site_packages::below(folder)).collect(),
            SearchPlace::Conda => site_packages::all().iter().filter_map(|packages| conda_folder(packages)).collect(),
            SearchPlace::Toolkit => {
                let roots = if platform == Kind::Hip { ["ROCM_PATH", "HIP_PATH"] } else { ["CUDA_HOME", "CUDA_PATH"] };
                variables(roots).flat_map(|root| [root.join("lib64"), root.join("lib")]).collect()
            }
            SearchPlace::Linker => vec![PathBuf::new()],
            SearchPlace::Installed if platform == Kind::Hip => vec!["/opt/rocm/lib".into()],
            SearchPlace::Installed => {
                let of_version = variant.cuda.map(|cuda| format!("/usr/local/cuda-{cuda}/lib64").into());
                of_version.into_iter().chain(["/usr/local/cuda/lib64".into()]).collect()
            }
        }
    }
}

/// A file that could be a variant of a component.
struct Candidate {
    /// A full path, or for the linker to find a bare name.
    file: PathBuf,
    variant: &'static Variant,
    origin: Origin,
}

/// Returns the files that could be one of the variants, in the order to look.
fn candidates(component: &Component, variants: Vec<&'static Variant>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for place in SearchPlace::ALL {
        for &variant in &variants {
            for folder in place.folders(component.platform, variant) {
                let file = |soname: &&str| Candidate { file: folder.join(soname), variant, origin: place.origin() };
                found.extend(variant.sonames.iter().map(file));
            }
        }
    }
    found
}

/// Returns those of the candidates with a full path that exist.
fn installed(component: &Component, variants: Vec<&'static Variant>) -> impl Iterator<Item = Candidate> + use<> {
    candidates(component, variants).into_iter().filter(|found| found.file.is_absolute() && found.file.exists())
}

/// Conda puts libraries in `<environment>/lib`, and packages in `<environment>/lib/python3.x/site-packages`.
fn conda_folder(packages: &Path) -> Option<PathBuf> {
    packages.ends_with("site-packages").then(|| packages.ancestors().nth(2).map(Path::to_owned)).flatten()
}

/// How a library was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Origin {
    /// `GPUPOOL_<NAME>_PATH` names the file.
    Environment,
    /// Other code had loaded it into the process.
    Process,
    /// A pip wheel's folder below `site-packages`.
    Wheel,
    /// The `lib` folder of a conda environment.
    Conda,
    /// `CUDA_HOME`, `CUDA_PATH`, `ROCM_PATH` or `HIP_PATH`, or where the toolkit's installer puts it.
    Toolkit,
    /// The dynamic linker found it: `LD_LIBRARY_PATH`, or the system's folders.
    System,
}

impl Origin {
    /// Returns the name in Python and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::Process => "process",
            Self::Wheel => "wheel",
            Self::Conda => "conda",
            Self::Toolkit => "toolkit",
            Self::System => "system",
        }
    }
}
