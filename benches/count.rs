//! So many calls of what is measured elsewhere in time, that their instructions can be counted: `count memory|handles CALLS`.
//! `benches/instructions.py` runs it under callgrind; what starting takes is in two counts and goes in their difference.

use std::hint::black_box;

use gpupool::memory::{self, allocate};
use gpupool::{Pooled, Simulated, Stream};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let (subject, calls) = match &arguments[..] {
        [subject, calls] => (subject.as_str(), calls.parse().expect("a number of calls")),
        // As `cargo bench` runs it, which measures no instructions.
        _ => ("memory", 1),
    };
    let stream = Stream::legacy(gpupool::device(0).expect("a device")).expect("a stream");
    for _ in 0..calls {
        match subject {
            "handles" => {
                black_box(Simulated::pool().handle(black_box(&stream)).expect("a handle"));
                drop(black_box(Simulated::pool().lease(black_box(&stream)).expect("a lease")));
            }
            _ => {
                for size in [512, 1 << 20, 32 << 20] {
                    let address = allocate(black_box(size), &stream).expect("memory");
                    // SAFETY: the block is freed once, by the code that allocated it, and nothing uses it.
                    unsafe { memory::deallocate(address, None) }.expect("ours");
                }
            }
        }
    }
}
