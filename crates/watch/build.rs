//! Has the library's own names stand for what is in it: where another library stands in for the same function and comes
//! first, the linker would take that one's here too, and the two would call each other for ever.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
