//! A program that leaves `main` while its threads hold handles, leases and memory ends quietly, with its own exit code.

use std::process::Command;
use std::sync::{Arc, Barrier};
use std::thread;

use gpupool::{Pooled, Simulated, Stream, empty};

/// Set for the process that is to end.
const CHILD: &str = "GPUPOOL_TEST_EXIT";

/// What a thread may hold, for ever.
fn hold(all_hold: &Barrier, stream: &Stream) {
    let handle = Simulated::pool().handle(stream).unwrap();
    let lease = Simulated::pool().lease(stream).unwrap();
    let buffer = empty(1 << 20, stream).unwrap();
    all_hold.wait();
    assert_ne!((handle.as_ptr(), buffer.ptr()), (lease.as_ptr(), 0));
    loop {
        thread::park();
    }
}

#[test]
fn a_program_ends_around_its_threads() {
    if std::env::var_os(CHILD).is_some() {
        let all_hold = Arc::new(Barrier::new(5));
        for number in 0..4 {
            let all_hold = Arc::clone(&all_hold);
            thread::spawn(move || {
                let device = gpupool::device(0).unwrap();
                hold(
                    &all_hold,
                    &if number % 2 == 0 {
                        Stream::legacy(device).unwrap()
                    } else {
                        Stream::per_thread(device).unwrap()
                    },
                );
            });
        }
        all_hold.wait();
        std::process::exit(7);
    }
    let program = std::env::current_exe().unwrap();
    let ended = Command::new(program)
        .args(["--exact", "exit::a_program_ends_around_its_threads", "--nocapture"])
        .env(CHILD, "1")
        .env("GPUPOOL_RUNTIME", "host")
        .output()
        .unwrap();
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr)), (Some(7), "".into()));
}
