//! Which file a call is for: the first on the way to it that is neither the driver, nor CUDA's runtime, nor this library.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::{PoisonError, RwLock};

use crate::elf::{self, file_name};

/// A file that has called the driver, by its place in the list of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId(usize);

struct Objects {
    /// How many were loaded and unloaded by then.
    changes: (u64, u64),
    /// The addresses of each one's code, and its file; none of those that call for others.
    ranges: Vec<(Range<usize>, Option<FileId>)>,
    /// Paths, also of files that were unloaded.
    files: Vec<CString>,
}

static OBJECTS: RwLock<Objects> = RwLock::new(Objects { changes: (0, 0), ranges: Vec::new(), files: Vec::new() });

/// Those that call for others, by how their files' names begin. Wheels have a runtime with a digest in its name.
const FOR_OTHERS: [&[u8]; 4] = [b"libcuda.so", b"libcudart.so", b"libcudart-", b"libgpupool_watch.so"];

/// Names that are better known than those of the files, by how these begin.
const NAMES: [(&[u8], &CStr); 21] = [
    (b"libnccl", c"NCCL"),
    (b"libcublasLt", c"cuBLASLt"),
    (b"libcublas", c"cuBLAS"),
    (b"libcudnn", c"cuDNN"),
    (b"libcusolver", c"cuSOLVER"),
    (b"libcusparse", c"cuSPARSE"),
    (b"libcudss", c"cuDSS"),
    (b"libcufft", c"cuFFT"),
    (b"libcurand", c"cuRAND"),
    (b"libcustatevec", c"cuStateVec"),
    (b"libcutensornet", c"cuTensorNet"),
    (b"libcutensor", c"cuTENSOR"),
    (b"libnvshmem", c"NVSHMEM"),
    (b"libnvinfer", c"TensorRT"),
    (b"libonnxruntime", c"ONNX Runtime"),
    (b"libc10_cuda", c"PyTorch"),
    (b"libtorch", c"PyTorch"),
    (b"xla_cuda_plugin", c"JAX"),
    (b"librmm", c"RMM"),
    (b"libggml", c"ggml"),
    (b"warp.so", c"Warp"),
];

/// Returns the file that a call was made for which returns to an address; none if none is known. While the process forks it is
/// told by what was known before, if that is enough.
pub(crate) fn caller(address: usize) -> Option<FileId> {
    let known = || OBJECTS.read().unwrap_or_else(PoisonError::into_inner);
    let asking = elf::asking_at_once().or_else(|| known().file_at(address).is_none().then(elf::asking));
    let changes = asking.and_then(|asking| elf::each_while(&asking, |object| Some(object.changes)));
    if changes.is_some_and(|changes| known().changes != changes) {
        look_again();
    }
    let objects = known();
    // Mostly it is the one that called.
    let mut found = objects.file_at(address);
    if found.is_none() {
        walk(|address| {
            found = objects.file_at(address);
            found.is_some()
        });
    }
    found
}

/// Returns whether nobody is in the middle of a change.
pub(crate) fn is_free() -> bool {
    OBJECTS.try_read().is_ok()
}

/// Takes up what is loaded now. The linker's lock and this list's are not held together.
fn look_again() {
    let (mut changes, mut loaded) = ((0, 0), Vec::<(Range<usize>, CString)>::new());
    let asking = elf::asking();
    elf::each_while(&asking, |object| {
        changes = object.changes;
        loaded.extend(object.code().map(|code| (code, object.path().to_owned())));
        None::<()>
    });
    drop(asking);
    loaded.sort_unstable_by_key(|(range, _)| range.start);
    let program = program();
    let mut objects = OBJECTS.write().unwrap_or_else(PoisonError::into_inner);
    let mut ranges = Vec::with_capacity(loaded.len());
    for (range, path) in loaded {
        let path = if path.is_empty() { program.clone().unwrap_or_default() } else { path };
        let calls_for_others = FOR_OTHERS.iter().any(|name| file_name(&path).starts_with(name));
        ranges.push((range, (!calls_for_others).then(|| objects.file(path))));
    }
    (objects.changes, objects.ranges) = (changes, ranges);
}

impl Objects {
    /// Returns the file that an address is in, unless it calls for others.
    fn file_at(&self, address: usize) -> Option<FileId> {
        let at = self.ranges.partition_point(|(range, _)| range.end <= address);
        self.ranges.get(at).filter(|(range, _)| range.contains(&address)).and_then(|(_, file)| *file)
    }

    fn file(&mut self, path: CString) -> FileId {
        let known = self.files.iter().position(|file| *file == path);
        FileId(known.unwrap_or_else(|| {
            self.files.push(path);
            self.files.len() - 1
        }))
    }
}

/// Returns the program's path: the process's file, or what the loader was started with, where that is it, or there is no
/// `/proc` to tell.
fn program() -> Option<CString> {
    let own = std::env::current_exe().ok().and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
    if own.as_ref().is_some_and(|own| !file_name(own).starts_with(b"ld")) {
        return own;
    }
    // SAFETY: it takes any number.
    let told = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const c_char;
    // SAFETY: the loader keeps there the name of the program that it has loaded.
    if told.is_null() { own } else { Some(unsafe { CStr::from_ptr(told) }.to_owned()) }
}

/// Returns a file's path, and the name that is known for what it is of.
pub(crate) fn names(file: Option<FileId>) -> (CString, CString) {
    let objects = OBJECTS.read().unwrap_or_else(PoisonError::into_inner);
    let path = file.and_then(|file| objects.files.get(file.0)).cloned();
    let path = path.unwrap_or_else(|| c"code without a file".to_owned());
    let file = file_name(&path);
    let known = NAMES.iter().find(|(begin, _)| file.starts_with(begin)).map(|(_, name)| (*name).to_owned());
    let name = known.or_else(|| CString::new(file).ok()).unwrap_or_default();
    (name, path)
}

unsafe extern "C" {
    fn _Unwind_Backtrace(step: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// Calls a function with an address in each of the thread's callers, the innermost first, until it has found its own.
fn walk(mut has_found: impl FnMut(usize) -> bool) {
    unsafe extern "C" fn step(context: *mut c_void, data: *mut c_void) -> c_int {
        const GO_ON: c_int = 0;
        const END: c_int = 5;
        // SAFETY: the data is what `walk` has passed on.
        let has_found = unsafe { &mut *data.cast::<&mut dyn FnMut(usize) -> bool>() };
        // It returns to the address after the call.
        // SAFETY: the context is that of the frame.
        let address = unsafe { _Unwind_GetIP(context) }.saturating_sub(1);
        if has_found(address) { END } else { GO_ON }
    }
    let mut has_found: &mut dyn FnMut(usize) -> bool = &mut has_found;
    // Unwinding asks the linker, of some versions under its lock.
    let _asking = elf::asking();
    // SAFETY: `step` is called before this returns, with the closure.
    unsafe { _Unwind_Backtrace(step, (&raw mut has_found).cast()) };
}
