//! Real libraries answer without a GPU too: the symbols, the call and the error are those of the vendor. Needs a cuDNN
//! wheel in `VIRTUAL_ENV`, as `make test` has it.

use crate::common::device;
use gpupool::library::{CUDNN, Library};
use gpupool::runtime::{self, Kind};
use gpupool::{Cudnn, ErrorKind, Pooled, StatusKind, Stream};

#[test]
#[ignore = "needs a cuDNN wheel in VIRTUAL_ENV"]
fn the_real_cudnn_refuses_to_make_a_handle_without_a_gpu() {
    host!();
    let path = CUDNN.path().unwrap().expect("a cuDNN in VIRTUAL_ENV");
    assert_eq!(CUDNN.version().unwrap().map(|version| version.0), Some(9));
    assert_eq!(CUDNN.name(), "cudnn");

    // The pool knows that simulated devices are no devices of cuDNN's.
    assert_eq!(runtime::get().unwrap().kind(), Kind::Host);
    let error = Cudnn::pool().handle(&Stream::legacy(device(0)).unwrap()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::RuntimeUnavailable { runtime: "cuda", .. }), "{error}");

    // Asked all the same, cuDNN says what its users would see. With a GPU it would make a handle instead.
    match CUDNN.create(device(0)) {
        Ok(handle) => CUDNN.destroy(handle).unwrap(),
        Err(error) => {
            let ErrorKind::Library(refused) = error.kind() else { panic!("{error}") };
            assert_eq!((refused.status.as_str(), refused.code), ("CUDNN_STATUS_NOT_INITIALIZED", 1001));
            assert_eq!((refused.function.as_str(), refused.kind), ("cudnnCreate", StatusKind::NotInitialized));
            assert_eq!(refused.path.as_ref(), Some(&path));
            assert!(error.to_string().contains("cudaGetDeviceCount"), "{error}");
        }
    }
}
