//! What the C library needs of its build: the name that programs linked against it look for. What the Python module needs:
//! a function of ours before Rust's own, see `src/python/ffi/interpreter.rs`, and its docstrings, which are those of the
//! stubs, `python/gpupool/_native.pyi`. What tests need: `cfg(schedules)`, see `src/sync/schedule.rs`.
//!
//! Each docstring becomes a file, `OUT_DIR/docstrings/MemPool.trim`, which `docstring!("MemPool.trim")` includes.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

const STUBS: &str = "python/gpupool/_native.pyi";
const QUOTES: &str = "\"\"\"";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_C_API").is_some() {
        // The number changes when programs that were linked before can no longer run with it.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgpupool.so.0");
    }
    // What tests run on, and no bench, is built so that its threads can run in schedules.
    let is_for_tests = env::var_os("CARGO_FEATURE_FAULT_INJECTION").is_some() && env::var("PROFILE")? == "debug";
    if is_for_tests && env::var_os("CARGO_CFG_LOOM").is_none() {
        println!("cargo::rustc-cfg=schedules");
    }
    if env::var_os("CARGO_FEATURE_PYTHON").is_none() {
        return Ok(());
    }
    #[cfg(feature = "python")]
    pyo3_build_config::use_pyo3_cfgs();
    println!("cargo::rustc-link-arg=-Wl,--wrap=rust_eh_personality");
    println!("cargo::rerun-if-changed={STUBS}");
    let folder = Path::new(&env::var("OUT_DIR")?).join("docstrings");
    fs::create_dir_all(&folder)?;
    let stubs = fs::read_to_string(STUBS).map_err(|error| format!("{STUBS}, which has the docstrings: {error}"))?;
    for (name, text) in docstrings(&stubs) {
        if text.contains('\\') {
            return Err(
                format!("{STUBS}: the docstring of {name} has a backslash, which is not taken for an escape").into()
            );
        }
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// Returns the name after `class` or `def` at the start of a line.
fn defined<'a>(line: &'a str, keyword: &str) -> Option<&'a str> {
    let name = line.strip_prefix(keyword)?;
    Some(name.split_once(['(', ':']).map_or(name, |(name, _)| name))
}

/// Returns the docstrings of classes, of their members by `Class.member`, and of functions. Lines keep no more indentation
/// than they have within the docstring.
fn docstrings(stubs: &str) -> Vec<(String, String)> {
    let (mut class, mut owner, mut found) = (String::new(), None, Vec::new());
    let mut lines = stubs.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = defined(line, "class ") {
            name.clone_into(&mut class);
            owner = Some(class.clone());
        } else if let Some(name) = defined(line, "def ") {
            owner = Some(name.to_owned());
        } else if let Some(name) = defined(line, "    def ") {
            owner = Some(format!("{class}.{name}"));
        }
        // What the module has for its own tests is told of nowhere else.
        if line.starts_with("def ") && line.ends_with(": ...") {
            found.extend(owner.take().map(|owner| (owner, "For the tests of gpupool itself.".to_owned())));
        }
        let Some(first) = line.trim_start().strip_prefix(QUOTES) else { continue };
        let indentation = line.len() - line.trim_start().len();
        let mut text = first.to_owned();
        while !text.contains(QUOTES) {
            let Some(next) = lines.next() else { break };
            text.push('\n');
            text.push_str(next.get(indentation..).unwrap_or_default());
        }
        if let Some(owner) = owner.take() {
            found.push((owner, text.trim_end().trim_end_matches(QUOTES).trim_end().to_owned()));
        }
    }
    found
}
