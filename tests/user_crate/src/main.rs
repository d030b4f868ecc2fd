//! What a program that depends on gpupool can do, on whatever runtime is there: it builds with neither CUDA nor Python.

use std::error::Error;

use gpupool::{Cusparse, MemPool, Pooled, Simulated, Stream};

fn main() -> Result<(), Box<dyn Error>> {
    let device = gpupool::device(0)?;
    let stream = Stream::new(device)?;

    let handle = if Cusparse::pool().is_available() {
        gpupool::handle::<Cusparse>(&stream)?
    } else {
        Simulated::pool().handle(&stream)?
    };
    println!("handle  {:p}", handle.as_ptr());

    let pool = MemPool::builder().limit(8 << 20).build()?;
    let buffer = {
        let _scope = pool.enter()?;
        gpupool::empty(1 << 20, &stream)?
    };
    println!(
        "memory  {} bytes on device {} of pool {:?}",
        buffer.nbytes(),
        buffer.device().ordinal(),
        buffer.pool_id()
    );
    if buffer.pool_id() != pool.id() {
        return Err("the memory is of another pool".into());
    }
    Ok(())
}
