//! Threads start and end and share handles of every available library: `cargo run --example handles`.

use std::thread;

use gpupool::{Cublas, CublasLt, Cudnn, Cudss, Cusolver, Cusparse, HandlePool, Pooled, Result, Simulated, Stream};

fn main() -> Result<()> {
    let device = gpupool::device(0)?;
    let every = [
        Cudnn::pool(),
        Cusparse::pool(),
        Cudss::pool(),
        Cublas::pool(),
        CublasLt::pool(),
        Cusolver::pool(),
        Simulated::pool(),
    ];
    for pool in every.into_iter().filter(HandlePool::is_available) {
        for _ in 0..100 {
            let work = thread::spawn(move || -> Result<()> {
                let stream = Stream::new(device)?;
                // Pass `handle.as_ptr()` to the library. It is this thread's until the thread ends.
                let handle = pool.handle(&stream)?;
                assert!(!handle.as_ptr().is_null());
                Ok(())
            });
            if let Ok(result) = work.join() {
                result?;
            }
        }
        let stats = pool.stats(None)?;
        println!("{}: {} handles created for {} threads", pool.name(), stats.created, stats.misses);
    }
    Ok(())
}
