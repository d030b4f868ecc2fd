//! Which streams are PyTorch's own: those of its pools, which it never destroys, so that they can be asked at any time.
//!
//! Others are external to PyTorch too, and may be gone while memory of theirs is still held. PyTorch tells them apart
//! by the last bit of a stream's id: `c10/cuda/CUDAStream.cpp` of PyTorch. Where its library lacks what is asked for
//! here, none counts as its own.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;

use crate::ids::{Device, RawStream};
use crate::runtime::{ExpectedCaptures, Stream};

/// `c10::cuda::CUDAStream`.
#[repr(C)]
struct TorchStream {
    device: [i8; 2],
    id: i64,
}

#[derive(Clone, Copy)]
struct Functions {
    /// `c10::cuda::getCurrentCUDAStream(DeviceIndex)`.
    current: unsafe extern "C-unwind" fn(i8) -> TorchStream,
    /// `c10::cuda::CUDAStream::stream() const`.
    address: unsafe extern "C-unwind" fn(*const TorchStream) -> *mut c_void,
}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// The symbols whose addresses [`set_symbols`] takes, in this order.
pub(super) const SYMBOLS: [&str; 2] = ["_ZN3c104cuda20getCurrentCUDAStreamEa", "_ZNK3c104cuda10CUDAStream6streamEv"];

/// Sets where PyTorch's [`SYMBOLS`] are.
///
/// # Safety
/// Each address is 0 or that of its symbol, in a library that stays loaded.
pub(super) unsafe fn set_symbols(addresses: [usize; 2]) {
    if addresses.contains(&0) {
        return;
    }
    let [current, address] = addresses.map(ptr::with_exposed_provenance::<c_void>);
    // SAFETY: the caller promises that these are the symbols' addresses, neither is null, and these are the symbols'
    // signatures: the class is two words without a destructor, which C++ returns as C does.
    let functions = unsafe {
        Functions {
            current: transmute::<*const c_void, unsafe extern "C-unwind" fn(i8) -> TorchStream>(current),
            address: transmute::<*const c_void, unsafe extern "C-unwind" fn(*const TorchStream) -> *mut c_void>(
                address,
            ),
        }
    };
    let _ = FUNCTIONS.set(functions);
}

thread_local! {
    /// The stream that this thread asked about last.
    static ASKED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Finds out whether the stream lasts, if it is the calling thread's current one in PyTorch.
///
/// # Safety
/// PyTorch called, and lets C++ exceptions through.
#[inline]
pub(super) unsafe fn note(stream: &Stream) {
    let asked = (stream.raw().address(), stream.device().ordinal());
    if stream.raw() != RawStream::LEGACY && ASKED.replace(asked) != asked {
        // SAFETY: the caller promises that PyTorch called.
        unsafe { ask(stream, stream.device()) };
    }
}

/// # Safety
/// As [`note`].
#[cold]
unsafe fn ask(stream: &Stream, device: Device) {
    let (Some(functions), Ok(ordinal)) = (FUNCTIONS.get(), i8::try_from(device.ordinal())) else { return };
    // SAFETY: the caller promises that PyTorch called, which just named a stream of the device.
    let (id, address) = unsafe { current(*functions, ordinal) };
    if is_own(id) && address.addr() == stream.raw().address() {
        stream.declare_lasting();
    }
}

/// Returns the id and the address of PyTorch's current stream.
///
/// # Safety
/// As [`note`], and PyTorch has initialised the device.
unsafe fn current(functions: Functions, ordinal: i8) -> (i64, *mut c_void) {
    // SAFETY: the functions are what their names say (`set_symbols`), and the caller promises that they can be called.
    unsafe {
        let current = (functions.current)(ordinal);
        (current.id, (functions.address)(&raw const current))
    }
}

/// Returns whether a stream with this id is of PyTorch's own pools.
const fn is_own(id: i64) -> bool {
    id & 1 == 1
}

/// Announces the capture that PyTorch is about to begin on its current stream: captures are expected as long as the caller
/// keeps the result. With it comes the stream if it is one of PyTorch's own, which can be asked about once the capture has
/// begun; any other may be gone before its capture is known to have ended.
///
/// # Safety
/// As [`note`].
pub(super) unsafe fn expect_capture(device: Device) -> (Option<Stream>, Option<ExpectedCaptures>) {
    let (Some(functions), Ok(ordinal)) = (FUNCTIONS.get(), i8::try_from(device.ordinal())) else {
        return (None, Some(ExpectedCaptures::new(device)));
    };
    // SAFETY: the caller promises that PyTorch called, which captures on the device.
    let (id, address) = unsafe { current(*functions, ordinal) };
    if id == 0 {
        // The default stream is never captured.
        return (None, None);
    }
    let lasting = is_own(id).then(|| {
        // SAFETY: PyTorch's current stream is alive, and of the device.
        let stream = unsafe { Stream::view_of(address, device) };
        stream.declare_lasting();
        stream.kept()
    });
    (lasting, Some(ExpectedCaptures::new(device)))
}
