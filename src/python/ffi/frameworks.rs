//! What CuPy's compiled modules use of each other, and the fields of objects of CuPy's and cuda.core's. CuPy's own pool goes that
//! way, and calls no class. Each is compared with what public calls make before it is used; one that has changed is not used,
//! and the public calls are.
//!
//! The memory of CuPy's arrays are objects of a class of our own below `cupy.cuda.BaseMemory`: one object instead of CuPy's and
//! the `DeviceBuffer` that it would keep.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{ManuallyDrop, transmute};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;

use pyo3::IntoPyObjectExt;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use crate::error::Error;
use crate::memory::DeviceBuffer;
use crate::process;
use crate::python::ffi::address::PythonAddress;
use crate::python::ffi::interpreter::function;

/// An object of the class. Its first part is CuPy's.
#[repr(C)]
struct Object {
    base: [u64; MEMORY_SIZE / size_of::<u64>()],
    held: ManuallyDrop<CupyBuffer>,
}

// Python's objects are aligned to two words.
const _: () = assert!(align_of::<Object>() <= 2 * size_of::<usize>());

struct CupyBuffer {
    buffer: DeviceBuffer,
    /// The object that keeps the buffer's stream alive, if there is one.
    keeper: Option<Py<PyAny>>,
}

const NAME: &CStr = c"gpupool._native.CupyMemory";
const DOCUMENTATION: &CStr = c"Memory of an array of CuPy's, from gpupool.";

/// The attributes beyond those of `cupy.cuda.BaseMemory`, and the end of their list.
struct MemoryAttributes([ffi::PyGetSetDef; 3]);

// SAFETY: the pointers in it are to constants.
unsafe impl Sync for MemoryAttributes {}

static ATTRIBUTES: MemoryAttributes = MemoryAttributes([
    attribute(c"stream".as_ptr(), Some(get_stream), c"The address of the stream on which it was allocated.".as_ptr()),
    attribute(c"pool_id".as_ptr(), Some(get_pool_id), c"The id of the pool that it came from.".as_ptr()),
    attribute(ptr::null(), None, ptr::null()),
]);

const fn attribute(name: *const c_char, get: Option<ffi::getter>, doc: *const c_char) -> ffi::PyGetSetDef {
    ffi::PyGetSetDef { name, get, set: None, doc, closure: ptr::null_mut() }
}

/// Makes the memory of arrays, and CuPy's pointers to it.
pub(crate) struct Memories {
    class: Py<PyType>,
    fields: Fields,
    pointer: Py<PyType>,
    new_pointer: ffi::newfunc,
    pointer_fields: Fields,
    no_arguments: Py<PyTuple>,
}

impl Memories {
    /// Takes `cupy.cuda.BaseMemory`, `UnownedMemory` and `MemoryPointer`; none where their objects are not as those of
    /// CuPy 13 and 14.
    pub(crate) fn new(base: &Bound<'_, PyAny>, unowned: &Bound<'_, PyAny>, pointer: &Bound<'_, PyAny>) -> Option<Self> {
        let py = base.py();
        let (base, pointer) = (base.cast::<PyType>().ok()?, pointer.cast::<PyType>().ok()?);
        // SAFETY: both are classes.
        let flags = [base, pointer].map(|class| unsafe { ffi::PyType_GetFlags(class.as_type_ptr()) });
        // Classes made by Python code end their objects in another way, and traced ones have fields with objects.
        if flags.iter().any(|flags| flags & ffi::Py_TPFLAGS_HEAPTYPE != 0) || flags[0] & ffi::Py_TPFLAGS_HAVE_GC != 0 {
            return None;
        }
        let (fields, pointer_fields) = find(base, unowned, pointer)?;
        // SAFETY: it is a class, of CuPy's and so compiled.
        let new_pointer = unsafe { ffi::PyType_GetSlot(pointer.as_type_ptr(), ffi::Py_tp_new) };
        if new_pointer.is_null() {
            return None;
        }
        Some(Self {
            class: class_below(base)?.unbind(),
            fields,
            pointer: pointer.clone().unbind(),
            // SAFETY: this slot has a function of this type, which is not null.
            new_pointer: unsafe { transmute::<*mut c_void, ffi::newfunc>(new_pointer) },
            pointer_fields,
            no_arguments: PyTuple::empty(py).unbind(),
        })
    }

    /// Returns a `cupy.cuda.MemoryPointer` to a buffer. The keeper is the object that keeps the buffer's stream alive.
    ///
    /// # Errors
    /// `MemoryError` where Python has no memory for the objects.
    #[inline]
    pub(crate) fn point_to<'py>(
        &self,
        py: Python<'py>,
        buffer: DeviceBuffer,
        keeper: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (address, bytes, device) = (buffer.ptr(), buffer.nbytes(), buffer.device().ordinal() as c_int);
        let held = CupyBuffer { buffer, keeper: keeper.map(Bound::unbind) };
        // SAFETY: the class is alive, and its objects are of one size.
        let object = unsafe { ffi::PyType_GenericAlloc(self.class.as_ptr().cast(), 0) };
        if object.is_null() {
            held.end(py);
            return Err(PyErr::fetch(py));
        }
        // SAFETY: the object is of our class, whose objects have this place, which is written before anything can end it.
        unsafe { (&raw mut (*object.cast::<Object>()).held).write(ManuallyDrop::new(held)) };
        // SAFETY: `find` has found these fields of these types in the part of the object that is CuPy's.
        let memory = unsafe {
            object.byte_add(self.fields.ptr).cast::<u64>().write(address);
            object.byte_add(self.fields.other).cast::<u64>().write(bytes);
            object.byte_add(self.fields.device).cast::<c_int>().write(device);
            Bound::from_owned_ptr(py, object)
        };
        // SAFETY: the function makes objects of this class, for which CuPy's own calls it without arguments.
        let pointer = unsafe {
            let made = (self.new_pointer)(self.pointer.as_ptr().cast(), self.no_arguments.as_ptr(), ptr::null_mut());
            Bound::from_owned_ptr_or_err(py, made)?
        };
        let fields = self.pointer_fields;
        // SAFETY: `find` has found these fields of these types in objects of the class; what the new one has of memory is a
        // reference of its own, for which it gets ours.
        unsafe {
            let object = pointer.as_ptr();
            object.byte_add(fields.ptr).cast::<u64>().write(address);
            object.byte_add(fields.device).cast::<c_int>().write(device);
            let before = object.byte_add(fields.other).cast::<*mut ffi::PyObject>().replace(memory.into_ptr());
            ffi::Py_XDECREF(before);
        }
        Ok(pointer)
    }
}

impl CupyBuffer {
    /// Frees the buffer, on its stream where that is known to be alive.
    #[inline]
    fn end(self, py: Python<'_>) {
        let Self { buffer, keeper } = self;
        if let Some(keeper) = keeper {
            let _keeper = keeper.into_bound(py);
            let stream = buffer.own_stream().view();
            // What the driver refuses to take back is tried again whenever memory is given back.
            let _ = buffer.free_on(&stream);
        }
    }
}

fn class_below<'py>(base: &Bound<'py, PyType>) -> Option<Bound<'py, PyType>> {
    let mut slots = [
        ffi::PyType_Slot { slot: ffi::Py_tp_dealloc, pfunc: dealloc as *mut c_void },
        ffi::PyType_Slot { slot: ffi::Py_tp_getset, pfunc: (&raw const ATTRIBUTES.0).cast_mut().cast() },
        ffi::PyType_Slot { slot: ffi::Py_tp_doc, pfunc: DOCUMENTATION.as_ptr().cast_mut().cast() },
        ffi::PyType_Slot { slot: 0, pfunc: ptr::null_mut() },
    ];
    let flags = ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION | ffi::Py_TPFLAGS_IMMUTABLETYPE;
    let mut spec = ffi::PyType_Spec {
        name: NAME.as_ptr(),
        basicsize: size_of::<Object>() as c_int,
        itemsize: 0,
        flags: flags as c_uint,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the specification is whole and is read now; what it points to besides is constant. The base is a class whose
    // objects are the first part of ours.
    let class =
        unsafe { Bound::from_owned_ptr_or_err(base.py(), ffi::PyType_FromSpecWithBases(&raw mut spec, base.as_ptr())) };
    let class = class.ok()?.cast_into::<PyType>().ok()?;
    let object = base.py().get_type::<PyAny>();
    // SAFETY: both are classes.
    let free = |class: &Bound<'_, PyType>| unsafe { ffi::PyType_GetSlot(class.as_type_ptr(), ffi::Py_tp_free) };
    // `dealloc` frees as plain objects are freed.
    (free(&class) == free(&object)).then_some(class)
}

/// Ends an object of the class: `tp_dealloc`. CuPy's part has nothing to end.
unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: Python ends an object on a thread that is attached.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: the object is of our class, and so was given what it holds, which is taken once.
    let held = unsafe { ManuallyDrop::take(&mut (*object.cast::<Object>()).held) };
    // A panic was printed, and `tp_dealloc` can raise no exception.
    let _ = catch_unwind(AssertUnwindSafe(|| held.end(py)));
    // SAFETY: an object of a class that was made from a specification has a reference to it, and was allocated by
    // `PyType_GenericAlloc` without the collector.
    unsafe {
        let class = ffi::Py_TYPE(object);
        ffi::PyObject_Free(object.cast());
        ffi::Py_DECREF(class.cast());
    }
}

/// Returns an attribute of the buffer of an object.
///
/// # Safety
/// The object is one of the class, and the thread is attached.
unsafe fn read<'py, R: IntoPyObject<'py>>(
    object: *mut ffi::PyObject,
    read: impl FnOnce(&DeviceBuffer) -> R,
) -> *mut ffi::PyObject {
    // SAFETY: the caller promises that the thread is attached.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: the caller promises that the object is one of the class, which the caller's reference keeps alive.
    let held = unsafe { &(*object.cast::<Object>()).held };
    let answer = catch_unwind(AssertUnwindSafe(|| {
        process::refuse_forked()?;
        read(&held.buffer).into_py_any(py)
    }));
    let panicked = |_| Err(Error::internal("an attribute of CuPy's memory panicked").into());
    answer.unwrap_or_else(panicked).map_or_else(
        |error| {
            error.restore(py);
            ptr::null_mut()
        },
        Py::into_ptr,
    )
}

unsafe extern "C" fn get_stream(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: Python calls this for objects of the class.
    unsafe { read(object, |buffer| buffer.own_stream().raw().address()) }
}

unsafe extern "C" fn get_pool_id(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: Python calls this for objects of the class.
    unsafe { read(object, DeviceBuffer::pool_id) }
}

// Where CuPy's objects have their fields, found by looking for known values in objects that CuPy has made.

/// What comes before the first field of an object.
const HEADER: usize = size_of::<ffi::PyObject>();

/// The offsets of the fields of an object of `cupy.cuda.BaseMemory`, or of a `cupy.cuda.MemoryPointer`. Each has no others but,
/// the second, a table of functions.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Fields {
    ptr: usize,
    device: usize,
    /// The size, or the memory that is pointed to.
    other: usize,
}

/// How many bytes an object of `cupy.cuda.BaseMemory` has: two words, and an int that fills a third.
const MEMORY_SIZE: usize = HEADER + 3 * size_of::<u64>();
/// How many a `cupy.cuda.MemoryPointer` has: the table, and as many.
const POINTER_SIZE: usize = HEADER + 4 * size_of::<u64>();

/// Values that do not come about by chance.
const TRIALS: [(u64, u64, i32); 2] = [
    (0x1e5a_77c3_9b04_e200, 0x0c81_5d2f_a36e_4b17, 0x3b5c_19d7),
    (0x63d0_08f1_4ab7_2c00, 0x2f96_e11c_70d8_53a9, 0x4d02_a6eb),
];
/// How far a pointer is into its memory.
const INTO: u64 = 0x0125_8d00;

/// Returns where the fields are; none where CuPy's objects are made in another way than those that are known.
fn find(base: &Bound<'_, PyType>, unowned: &Bound<'_, PyAny>, pointer: &Bound<'_, PyType>) -> Option<(Fields, Fields)> {
    let py = base.py();
    let has = |class: &Bound<'_, PyType>, size: usize| {
        class.getattr("__basicsize__").and_then(|found| found.extract::<usize>()).is_ok_and(|found| found == size)
            && class.getattr("__dictoffset__").and_then(|found| found.extract::<isize>()).is_ok_and(|found| found == 0)
    };
    if !has(base, MEMORY_SIZE) || !has(pointer, POINTER_SIZE) || base.hasattr("__pyx_vtable__").ok()? {
        return None;
    }
    let mut found = TRIALS.iter().map(|&(ptr, size, device)| {
        let memory = unowned.call1((ptr, size, py.None(), device)).ok()?;
        let made = pointer.call1((&memory, INTO)).ok()?;
        if !memory.is_instance(base).ok()? || !made.is_exact_instance(pointer) {
            return None;
        }
        let (of_memory, of_pointer) = (words(&memory, MEMORY_SIZE), words(&made, POINTER_SIZE));
        let address = memory.as_ptr().expose_provenance() as u64;
        let fields = Fields {
            ptr: only(&of_memory, |word| word == ptr)?,
            device: only(&of_memory, |word| low_half(word) == device)?,
            other: only(&of_memory, |word| word == size)?,
        };
        let pointer_fields = Fields {
            ptr: only(&of_pointer, |word| word == ptr + INTO)?,
            device: only(&of_pointer, |word| low_half(word) == device)?,
            other: only(&of_pointer, |word| word == address)?,
        };
        Some((fields, pointer_fields))
    });
    let (first, second) = (found.next()??, found.next()??);
    (first == second).then_some(first)
}

/// Returns the words of an object that come after what every object has.
fn words(object: &Bound<'_, PyAny>, size: usize) -> Vec<u64> {
    let start = object.as_ptr().cast::<u64>();
    let range = HEADER / size_of::<u64>()..size / size_of::<u64>();
    // SAFETY: the object is alive and of a class whose objects have at least so many bytes, and nothing writes to it.
    range.map(|index| unsafe { start.add(index).read() }).collect()
}

/// Returns the offset of the one word that is right; none where none or several are.
fn only(words: &[u64], is_right: impl Fn(u64) -> bool) -> Option<usize> {
    let mut right = words.iter().enumerate().filter(|(_, word)| is_right(**word)).map(|(index, _)| index);
    let first = right.next()?;
    right.next().is_none().then_some(HEADER + first * size_of::<u64>())
}

/// An int that fills a word with what is behind it.
const fn low_half(word: u64) -> i32 {
    word as u32 as i32
}

// CuPy's current stream, by the C function that CuPy's compiled modules import from each other: it runs no Python.

/// What Cython wrote of `cupy.cuda.stream.get_current_stream`, of CuPy 13 and 14. One that has changed is not called.
const SIGNATURE: &CStr =
    c"PyObject *(int __pyx_skip_dispatch, struct __pyx_opt_args_4cupy_4cuda_6stream_get_current_stream \
                           *__pyx_optional_args)";

/// The first argument is for methods alone; the second has those that may be left out, and is null for none.
type GetCurrentStream = unsafe extern "C" fn(c_int, *const Options) -> *mut ffi::PyObject;

/// Arguments that may be left out, as Cython passes them.
#[repr(C)]
pub(crate) struct Options {
    /// How many are given.
    count: c_int,
    device: c_int,
}

/// How the thread's current stream on its current device is asked for.
pub(crate) enum CurrentStream {
    /// By the C function.
    Exported(GetCurrentStream),
    /// By the function for users, where CuPy exports another one or none.
    Called(Py<PyAny>),
}

impl CurrentStream {
    /// `exported` is what `cupy.cuda.stream.__pyx_capi__` has of the name; `function` is for users.
    pub(crate) fn new(exported: Option<&Bound<'_, PyAny>>, function: Py<PyAny>) -> Self {
        // SAFETY: the object is alive, and may be any; the name is a string.
        let is_known = |exported: &&Bound<'_, PyAny>| unsafe {
            ffi::PyCapsule_IsValid(exported.as_ptr(), SIGNATURE.as_ptr()) == 1
        };
        let Some(exported) = exported.filter(is_known) else { return Self::Called(function) };
        // SAFETY: the capsule is one of this name.
        let address = unsafe { ffi::PyCapsule_GetPointer(exported.as_ptr(), SIGNATURE.as_ptr()) };
        // SAFETY: the capsule's name is the function's signature, and a module is never unloaded.
        Self::Exported(unsafe { transmute::<*mut c_void, GetCurrentStream>(address) })
    }

    /// Whether it is the C function that is called.
    pub(crate) const fn is_exported(&self) -> bool {
        matches!(self, Self::Exported(_))
    }

    /// Returns the object of the thread's current stream, on its current device or another one.
    #[inline]
    pub(crate) fn get<'py>(&self, py: Python<'py>, device: Option<c_int>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Exported(function) => {
                let options = device.map(|device| Options { count: 1, device });
                let options = options.as_ref().map_or(ptr::null(), ptr::from_ref);
                // SAFETY: the thread is attached, and the options live as long as the call; the function returns a new
                // reference, or null with an error set.
                unsafe { Bound::from_owned_ptr_or_err(py, function(0, options)) }
            }
            Self::Called(function) => match device {
                Some(device) => function.bind(py).call1((device,)),
                None => function.bind(py).call0(),
            },
        }
    }
}

// Handles of cuda.core's streams, read directly from the objects.
//
// A `cuda.core.Stream` has a `std::shared_ptr` to its handle. Calling its `__cuda_stream__` builds a tuple and an int, twice
// for each buffer. So gpupool checks whether streams of known handles have these where it expects them, and then reads the
// handles of other streams there. Otherwise, and for objects of other classes, it calls `__cuda_stream__`.
//
// Calls pass their arguments in an array, without a tuple and a dict for each: `PyObject_Vectorcall`. Python has had that since
// 3.9, but in the stable ABI, which this module uses, only since 3.12. So it is looked up, and calls are made in the usual way
// if it is not found.

/// Where a stream has the pointer to its handle: behind what every object has, and Cython's table of functions.
const PLACE: usize = size_of::<ffi::PyObject>() + size_of::<*const ()>();
/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`, which are valid whatever cuda.core asks the driver of them.
const DEFAULT_STREAMS: [usize; 2] = [1, 2];

/// How handles of streams are read.
pub(crate) struct StreamHandles {
    /// `cuda.core.Stream`, whose objects have the handle at [`PLACE`].
    class: Py<PyType>,
}

impl StreamHandles {
    /// Returns none if streams have another layout, and without a GIL, where another thread may close the stream meanwhile.
    pub(crate) fn find(class: &Bound<'_, PyType>) -> Option<Self> {
        if cfg!(Py_GIL_DISABLED) || !class.hasattr("__pyx_vtable__").is_ok_and(|has_table| has_table) {
            return None;
        }
        let size = class.getattr("__basicsize__").ok()?.extract::<usize>().ok()?;
        if size < PLACE + size_of::<*const usize>() {
            return None;
        }
        let is_there = |&handle: &usize| {
            let stream = class.call_method1("from_handle", (handle,)).ok()?;
            // SAFETY: an object of this very class is as long as that.
            let pointer = stream.is_exact_instance(class).then(|| unsafe { handle_pointer(&stream) })?;
            (read_anywhere(pointer)? == handle).then_some(())
        };
        DEFAULT_STREAMS.iter().all(|handle| is_there(handle).is_some()).then(|| Self { class: class.clone().unbind() })
    }

    /// Returns the handle of a stream; none if it is closed, or the object is of another class.
    #[inline]
    pub(crate) fn read(&self, object: &Bound<'_, PyAny>) -> Option<PythonAddress> {
        if !object.is_exact_instance(self.class.bind(object.py())) {
            return None;
        }
        // SAFETY: an object of this very class has the pointer, null or to a handle that lives as long, and with the GIL
        // held no other thread closes it.
        unsafe { handle_pointer(object).as_ref() }.map(|handle| PythonAddress::from_stream(*handle))
    }
}

/// Returns the word at [`PLACE`].
///
/// # Safety
/// The object has so many bytes, and no other thread writes to them.
#[inline]
unsafe fn handle_pointer(object: &Bound<'_, PyAny>) -> *const usize {
    // SAFETY: the caller promises that the word is there.
    unsafe { object.as_ptr().byte_add(PLACE).cast::<*const usize>().read() }
}

/// Returns the word at an address; none if the process has no memory there.
fn read_anywhere(address: *const usize) -> Option<usize> {
    let mut word = 0usize;
    let here = libc::iovec { iov_base: ptr::from_mut(&mut word).cast(), iov_len: size_of::<usize>() };
    let there = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: size_of::<usize>() };
    // SAFETY: `here` is a word of ours, and the kernel looks whether `there` is memory.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    (usize::try_from(read) == Ok(size_of::<usize>())).then_some(word)
}

/// `PyObject_Vectorcall(callable, arguments, count, names)` and `PyObject_VectorcallMethod(name, arguments, count, names)`.
type Vectorcall = unsafe extern "C" fn(*mut PyObject, *const *mut PyObject, usize, *mut PyObject) -> *mut PyObject;

/// Added to the count (`PY_VECTORCALL_ARGUMENTS_OFFSET`): the callee may write to the place before the arguments, and restores
/// it.
const PLACE_BEFORE: usize = 1 << (usize::BITS - 1);

/// Returns both; none where this Python lacks any.
#[inline]
fn functions() -> Option<[Vectorcall; 2]> {
    static FOUND: OnceLock<Option<[Vectorcall; 2]>> = OnceLock::new();
    // SAFETY: Python's functions of these names have this prototype in all versions that have them.
    let find = |name| unsafe { function::<Vectorcall>(name) };
    *FOUND.get_or_init(|| Some([find(c"PyObject_Vectorcall")?, find(c"PyObject_VectorcallMethod")?]))
}

/// Calls with three arguments, and a fourth by the one name in `names`.
#[inline]
pub(crate) fn call_named<'py>(
    callable: &Bound<'py, PyAny>,
    arguments: [&Bound<'py, PyAny>; 3],
    names: &Bound<'py, PyTuple>,
    named: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = callable.py();
    let [first, second, third] = arguments;
    let Some([call, _]) = functions() else {
        let keywords = PyDict::new(py);
        keywords.set_item(names.get_item(0)?, named)?;
        return callable.call((first, second, third), Some(&keywords));
    };
    let mut places = [ptr::null_mut(), first.as_ptr(), second.as_ptr(), third.as_ptr(), named.as_ptr()];
    // SAFETY: all are alive, the names are as many as arguments follow the three, and the place before them is ours.
    unsafe {
        let arguments = places.as_mut_ptr().add(1).cast_const();
        let result = call(callable.as_ptr(), arguments, 3 | PLACE_BEFORE, names.as_ptr());
        Bound::from_owned_ptr_or_err(py, result)
    }
}

/// Calls a method without arguments.
#[inline]
pub(crate) fn call_method<'py>(object: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
    let Some([_, method]) = functions() else { return object.call_method0(name) };
    let mut places = [ptr::null_mut(), object.as_ptr()];
    // SAFETY: both are alive, and the place before the object is ours.
    unsafe {
        let arguments = places.as_mut_ptr().add(1).cast_const();
        let result = method(name.as_ptr(), arguments, 1 | PLACE_BEFORE, ptr::null_mut::<ffi::PyObject>());
        Bound::from_owned_ptr_or_err(object.py(), result)
    }
}
