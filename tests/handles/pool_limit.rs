//! A process that makes pools in a loop is told so.

use gpupool::library::simulated::SimulatedLibrary;
use gpupool::{ErrorKind, HandlePool};

#[test]
fn pools_made_in_a_loop_end_in_an_error() {
    host!();
    let error = (0..300).find_map(|_| HandlePool::new(SimulatedLibrary).err()).expect("an error");
    assert!(matches!(error.kind(), ErrorKind::Unavailable(what) if what.contains("256 handle pools")), "{error}");
    assert!(HandlePool::new(SimulatedLibrary).is_err());
}
