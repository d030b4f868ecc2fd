//! Tells the linker of the Python module to put a function of ours before Rust's own: see `src/python/ffi/unwinding.rs`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_PYTHON").is_some() {
        println!("cargo::rustc-link-arg=-Wl,--wrap=rust_eh_personality");
    }
}
