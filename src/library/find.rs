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

use super::description::{Component, NVJITLINK, NVRTC, Variant};
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
    let driver = driver_major(component.platform());
    let mut search = Search { component, symbols, driver, tried: Vec::new(), is_present: false };
    search.find().ok_or_else(|| {
        let remedy = format!(
            "Install it with: pip install {}\nor set {} to its file or folder",
            package(component, search.cuda_to_install()),
            variable(component)
        );
        let (tried, is_present) = (search.tried, search.is_present);
        ErrorKind::LibraryNotFound { library: component.name, tried, remedy, is_present }.into()
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
    component: &'static Component,
    symbols: &'a [&'a CStr],
    driver: Option<u32>,
    tried: Vec<String>,
    /// Whether a file was there, though none that can be used.
    is_present: bool,
}

impl Search<'_> {
    fn find(&mut self) -> Option<Loaded> {
        let files = match std::env::var_os(variable(self.component)) {
            Some(wanted) => files_at(self.component, Path::new(&wanted)),
            None => {
                let sonames = self.component.variants.iter().flat_map(|variant| variant.sonames);
                for soname in sonames {
                    if let Some(library) = already_loaded(soname) {
                        // Even if this copy lacks a symbol: two copies in a process would be worse.
                        return self.accept(library, Path::new(soname), Origin::Process);
                    }
                }
                files_of(self.component, self.supported_variants())
            }
        };
        files.iter().find_map(|file| self.try_file(file))
    }

    fn try_file(&mut self, LibraryFile { path, cuda, origin }: &LibraryFile) -> Option<Loaded> {
        // The linker finds what its own libraries need.
        if *origin != Origin::System {
            if !path.exists() {
                self.note_file(path, *origin, ": no such file");
                return None;
            }
            preload(self.component, *cuda);
        }
        match open(path, NOW) {
            Ok(library) => self.accept(library, path, *origin),
            Err(reason) => {
                self.is_present |= !is_absent(path, &reason);
                self.note_file(path, *origin, &format!(": {reason}"));
                None
            }
        }
    }

    /// Takes the library if it has every symbol.
    fn accept(&mut self, library: Library, file: &Path, origin: Origin) -> Option<Loaded> {
        let path = self.symbols.iter().find_map(|symbol| file_of(&library, symbol)).unwrap_or_else(|| file.to_owned());
        if let Some(symbol) = missing_symbol(&library, self.symbols) {
            let symbol = symbol.to_string_lossy();
            let how = if origin == Origin::Process { "already loaded" } else { "loaded" };
            self.is_present = true;
            self.note_file(&path, origin, &format!(" ({how}): lacks the symbol {symbol}, so it is too old"));
            return None;
        }
        let cuda = cuda_of(self.component, &path);
        let origin = if origin == Origin::Process { preloaded_from(&path).unwrap_or(origin) } else { origin };
        Some(Loaded { library, path, origin, cuda })
    }

    /// Those that the driver supports: first the CUDA that is in use in this process, then the newest.
    fn supported_variants(&mut self) -> Vec<&'static Variant> {
        let in_use = cuda_in_use();
        let mut variants: Vec<_> = self.component.variants.iter().collect();
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

    /// Returns the major version of CUDA that a missing component fits to: the one that is in use in this process, else
    /// the one that libraries beside it are installed for, else the newest that the driver supports.
    fn cuda_to_install(&self) -> u32 {
        let component = self.component;
        let newest = component.variants.first().and_then(|variant| variant.cuda);
        let is_supported = |cuda: &u32| self.driver.is_none_or(|driver| *cuda <= driver);
        let fitting = cuda_in_use().or_else(|| cuda_installed(component)).filter(is_supported);
        fitting.or(self.driver).or(newest).unwrap_or_default()
    }

    /// Notes a file, by which variable of the user's, and why it is not the one.
    fn note_file(&mut self, file: &Path, origin: Origin, why: &str) {
        let variable = variable(self.component);
        let named = if origin == Origin::Environment { format!(" (from {variable})") } else { String::new() };
        self.note(format!("{}{named}{why}", file.display()));
    }

    /// Notes a place that was tried, once: two versions of CUDA may share one.
    fn note(&mut self, tried: String) {
        if !self.tried.contains(&tried) {
            self.tried.push(tried);
        }
    }
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

/// Returns the major version of CUDA that the libraries are built for which a component needs, or which most wheels
/// bring, if those that are installed are of just one.
fn cuda_installed(component: &Component) -> Option<u32> {
    let beside = component.needs.iter().copied().chain([&NVJITLINK, &NVRTC]);
    let mut found = beside.flat_map(|component| {
        let there = installed(component, component.variants.iter().collect());
        there.filter_map(|file| file.cuda.filter(|cuda| cuda_of(component, &file.path) == Some(*cuda)))
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
        let Some((library, file)) = there.find_map(|file| Some((open(&file.path, NOW).ok()?, file))) else { continue };
        lock(&PRELOADED).push((file.path.canonicalize().unwrap_or(file.path), file.origin));
        // It stays loaded for the life of the process.
        std::mem::forget(library);
    }
}

/// A file that could be a component.
struct LibraryFile {
    /// A bare name is for the linker to find.
    path: PathBuf,
    /// The major version of CUDA that what it needs is to be of.
    cuda: Option<u32>,
    origin: Origin,
}

/// Returns the files at the place that the user named.
fn files_at(component: &Component, wanted: &Path) -> Vec<LibraryFile> {
    let sonames = component.variants.iter().flat_map(|variant| variant.sonames);
    let paths =
        if wanted.is_dir() { sonames.map(|soname| wanted.join(soname)).collect() } else { vec![wanted.to_owned()] };
    let newest = component.variants.first().and_then(|variant| variant.cuda);
    let file =
        |path: PathBuf| LibraryFile { cuda: cuda_of(component, &path).or(newest), path, origin: Origin::Environment };
    paths.into_iter().map(file).collect()
}

/// Returns the kinds of places in the order to look, with the folders of each that could have the variant.
fn places_of(platform: Kind, variant: &Variant) -> [(Origin, Vec<PathBuf>); 5] {
    let is_hip = platform == Kind::Hip;
    let roots = if is_hip { ["ROCM_PATH", "HIP_PATH"] } else { ["CUDA_HOME", "CUDA_PATH"] };
    let of_version = variant.cuda.map(|cuda| format!("/usr/local/cuda-{cuda}/lib64").into());
    let by_installer = if is_hip { "/opt/rocm/lib" } else { "/usr/local/cuda/lib64" };
    [
        (Origin::Wheel, variant.folders.iter().flat_map(|folder| site_packages::below(folder)).collect()),
        (Origin::Conda, site_packages::all().iter().filter_map(|packages| conda_folder(packages)).collect()),
        (Origin::Toolkit, variables(roots).flat_map(|root| [root.join("lib64"), root.join("lib")]).collect()),
        // A bare name: the dynamic linker's own search, `LD_LIBRARY_PATH` included.
        (Origin::System, vec![PathBuf::new()]),
        // Where the toolkit's installer puts it.
        (Origin::Toolkit, of_version.into_iter().chain([by_installer.into()]).collect()),
    ]
}

/// Returns the files that could be one of the variants, in the order to look. Each kind of place is looked through for
/// every variant before the next, so that what a user installed for a program comes before what the machine has for
/// all.
fn files_of(component: &Component, variants: Vec<&'static Variant>) -> Vec<LibraryFile> {
    let mut found = Vec::new();
    for variant in variants {
        for (kind, (origin, folders)) in places_of(component.platform(), variant).into_iter().enumerate() {
            let paths = folders.iter().flat_map(|folder| variant.sonames.iter().map(move |soname| folder.join(soname)));
            found.extend(paths.map(|path| (kind, LibraryFile { path, cuda: variant.cuda, origin })));
        }
    }
    found.sort_by_key(|(kind, _)| *kind);
    found.into_iter().map(|(_, file)| file).collect()
}

/// Returns those files of a component's variants that exist.
fn installed(component: &Component, variants: Vec<&'static Variant>) -> impl Iterator<Item = LibraryFile> + use<> {
    files_of(component, variants).into_iter().filter(|file| file.path.is_absolute() && file.path.exists())
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
