//! A foreign stream that was destroyed although gpupool has memory of it: no later call crashes. Each case runs in a
//! process of its own and prints what the driver answers. Without a GPU the test says so and passes.

use std::env;
use std::process::Command;
use std::ptr;

use crate::driver::{DEVICE, Filled, Kernels, MIB, bind, ok, raw, synchronize};
use cudarc::driver::sys;
use gpupool::memory::set_per_process_memory_fraction;
use gpupool::{MemPool, Stream, empty, empty_cache, memory_snapshot, memory_stats, runtime};

const CASE: &str = "GPUPOOL_DEAD_STREAM_CASE";
const CASES: [&str; 5] = ["empty_cache", "taken", "grow", "pool", "live"];

/// A stream that gpupool knows by its address alone.
fn foreign() -> Stream {
    let mut stream = ptr::null_mut();
    // SAFETY: the place is valid.
    ok(unsafe { sys::cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32) });
    // SAFETY: the stream is alive; what happens once it is not is what is tested.
    unsafe { Stream::from_raw(stream.cast()) }.unwrap()
}

fn destroy(stream: &Stream) {
    stream.synchronize().unwrap();
    // SAFETY: the stream is alive until here.
    ok(unsafe { sys::cuStreamDestroy_v2(raw(stream)) });
}

fn run(case: &str) {
    let _bound = bind(DEVICE);
    let kernels = Kernels::of(DEVICE);
    let (dead, alive) = (foreign(), Stream::new(DEVICE).unwrap());
    let pool = MemPool::builder().device(DEVICE).build().unwrap();
    let tell = |what: &str, outcome: gpupool::Result<String>| match outcome {
        Ok(answer) => println!("{case}: {what}: ok {answer}"),
        Err(error) => println!("{case}: {what}: {error}"),
    };
    let live = {
        let _scope = (case == "pool").then(|| pool.enter().unwrap());
        drop(Filled::new(kernels, &dead, 64 * MIB, 1).unwrap());
        Filled::new(kernels, &dead, 3 * MIB, 2).unwrap()
    };
    let mut live = Some(live);
    if case != "live" {
        live = None;
    }
    destroy(&dead);
    match case {
        "empty_cache" => {
            for _ in 0..2 {
                tell("giving memory back", empty_cache().map(|bytes| bytes.to_string()));
                synchronize();
            }
        }
        // Memory is short, so the dead stream's pages are wanted.
        "taken" => {
            let total = runtime::get().unwrap().total_memory(DEVICE.into()).unwrap();
            set_per_process_memory_fraction((80 * MIB) as f64 / total as f64, DEVICE).unwrap();
            tell("taking its pages", empty(64 * MIB, &alive).map(|buffer| buffer.nbytes().to_string()));
            tell("again", empty(64 * MIB, &alive).map(|buffer| buffer.nbytes().to_string()));
        }
        // There is enough, but its pages are looked at first.
        "grow" => tell("growing beside its pages", empty(64 * MIB, &alive).map(|buffer| buffer.nbytes().to_string())),
        "pool" => {
            drop(pool);
            tell("after dropping its pool, giving back", empty_cache().map(|bytes| bytes.to_string()));
        }
        "live" => {
            drop(live);
            tell("after freeing a live block, giving back", empty_cache().map(|bytes| bytes.to_string()));
        }
        other => panic!("{other} is no case"),
    }
    // Others go on as before.
    synchronize();
    let filled = Filled::new(kernels, &alive, 16 * MIB, 3);
    if let Ok(filled) = &filled {
        filled.check(kernels);
    }
    tell("other streams", filled.map(|_| format!("{} wrong words", kernels.wrong_words())));
    // A new stream may get the dead one's address.
    let again = foreign();
    tell(
        "a new stream",
        Filled::new(kernels, &again, 64 * MIB, 4).map(|filled| {
            filled.check(kernels);
            let same = again.raw() == dead.raw();
            format!("{} wrong words; its address is the dead one's: {same}", kernels.wrong_words())
        }),
    );
    tell("giving memory back", empty_cache().map(|bytes| bytes.to_string()));
    tell("statistics", memory_stats(DEVICE).map(|stats| format!("{} bytes reserved", stats.total.reserved_bytes)));
    tell("a snapshot", memory_snapshot().map(|segments| format!("{} segments", segments.len())));
    assert_eq!(kernels.wrong_words(), 0);
}

#[test]
#[ignore = "needs a GPU"]
fn memory_of_a_destroyed_stream_crashes_nothing() {
    let _turn = crate::driver::turn();
    if let Ok(case) = env::var(CASE) {
        return run(&case);
    }
    let mut failed = Vec::new();
    for case in CASES {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args([
                "--exact",
                "dead_stream::memory_of_a_destroyed_stream_crashes_nothing",
                "--nocapture",
                "--include-ignored",
            ])
            .env(CASE, case);
        let done = command.output().unwrap();
        let text = [done.stdout, done.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        print!("{text}");
        println!("{case}: {}", done.status);
        if !done.status.success() {
            failed.push(case);
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}
