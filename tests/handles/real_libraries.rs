//! cuQuantum's libraries, cuTENSOR and cuSPARSELt as NVIDIA's wheels have them: each has every function that gpupool loads, and
//! says without a GPU why it makes no handle. Together they are of half a gigabyte, so that CI has none of them.

use crate::common::device;
use gpupool::ErrorKind;
use gpupool::library::{CUSPARSELT, CUSTATEVEC, CUTENSOR, CUTENSORNET, Library, Vendor};
use gpupool::runtime::{self, Kind};

/// A library, what of its version never changes, whether handles take memory, and what it answers where there is no GPU.
/// cuTensorNet makes a handle there that computes nothing.
type Expected = (&'static Vendor, u32, bool, Option<(&'static str, &'static str)>);

const EXPECTED: [Expected; 4] = [
    (&CUSTATEVEC, 1, true, Some(("custatevecCreate", "CUSTATEVEC_STATUS_NOT_INITIALIZED"))),
    (&CUTENSORNET, 2, true, None),
    (&CUTENSOR, 2, false, Some(("cutensorCreate", "CUTENSOR_STATUS_CUDA_ERROR"))),
    (&CUSPARSELT, 0, false, Some(("cusparseLtInit", "CUSPARSE_STATUS_NOT_INITIALIZED"))),
];

#[test]
#[ignore = "needs the wheels of custatevec, cutensornet, cutensor and nvidia-cusparselt in VIRTUAL_ENV, and no GPU"]
fn they_have_every_function_and_say_why_they_make_no_handle() {
    host!();
    assert_eq!(runtime::get().unwrap().kind(), Kind::Host);
    for (library, major, takes_memory, refusal) in EXPECTED {
        let path = library.path().unwrap();
        assert_eq!(library.version().unwrap().map(|version| version.0), Some(major), "{}", library.name());
        assert_eq!(library.takes_memory().unwrap(), takes_memory, "{}", library.name());
        match (library.create(device(0)), refusal) {
            (Ok(handle), None) => library.destroy(handle).unwrap(),
            (Err(error), Some((function, status))) => {
                let ErrorKind::Library(refused) = error.kind() else { panic!("{error}") };
                assert_eq!((refused.function.as_str(), refused.status.as_str()), (function, status), "{error}");
                assert_eq!(refused.path, path);
            }
            (made, _) => panic!("{} answers otherwise: {made:?}", library.name()),
        }
    }
}
