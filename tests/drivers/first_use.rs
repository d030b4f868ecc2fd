//! Threads that are the first to use a device, all at once: one of them makes its memory, and what the others made goes back.

use std::sync::Barrier;
use std::thread;

use crate::double::{CUDA, on_double, set};
use gpupool::{Stream, device, empty};

const THREADS: usize = 16;

/// Has threads allocate on devices that nothing has used; the double ends the process at a wrong call.
fn use_at_once() {
    for ordinal in 0..2 {
        let stream = Stream::new(device(ordinal).unwrap()).unwrap();
        let together = Barrier::new(THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    together.wait();
                    empty(4096, &stream).unwrap();
                });
            }
        });
    }
}

#[test]
fn with_virtual_memory() {
    on_double!(CUDA);
    use_at_once();
}

#[test]
fn without_virtual_memory() {
    on_double!(CUDA);
    set("FAKE_VMM", "0");
    use_at_once();
}
