//! A C compiler compares the structs with the header's.

use std::io::{Result, Write};
use std::process::{Command, Stdio};

use super::c_type::{CType, c_types};
use super::{DeviceStats, HeaderStruct, PoolId, Stat};
use crate::c_api::{
    Api, Attached, Block, Checkpoint, ClaimHandle, Durations, Event, HandleCounts, HandleLease, PoolHandle,
    PoolOptions, PoolSource, RangeHandle, Recording, Segment, SnapshotVisitor, VERSION,
};

const HEADER: &str = include_str!("../../../python/gpupool/include/gpupool.h");

/// Returns whether C compiles after the header, and what the compiler says.
fn compile(text: &str) -> Result<(bool, String)> {
    let mut compiler = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = compiler.stdin.take() {
        write!(input, "{HEADER}\n{text}")?;
    }
    let ended = compiler.wait_with_output()?;
    Ok((ended.status.success(), String::from_utf8_lossy(&ended.stderr).into_owned()))
}

/// Returns the struct's name, and C that fails to compile unless the header's is the same.
fn assertions<T: HeaderStruct>() -> (&'static str, String) {
    let (name, size, fields) = (T::NAME, size_of::<T>(), T::assert_fields());
    (name, format!("_Static_assert(sizeof({name}) == {size}, \"size of {name}\");\n{fields}"))
}

#[test]
#[cfg_attr(miri, ignore = "it starts a compiler")]
fn the_header_has_the_structs_and_the_functions() -> Result<()> {
    let structs = [
        assertions::<PoolId>(),
        assertions::<PoolSource>(),
        assertions::<PoolOptions>(),
        assertions::<Block>(),
        assertions::<Segment>(),
        assertions::<Event>(),
        assertions::<SnapshotVisitor>(),
        assertions::<Recording>(),
        assertions::<Stat>(),
        assertions::<DeviceStats>(),
        assertions::<Durations>(),
        assertions::<HandleLease>(),
        assertions::<HandleCounts>(),
        assertions::<Api>(),
    ];
    let in_header = HEADER.lines().filter_map(|line| line.strip_prefix("typedef struct ")?.strip_suffix(" {"));
    assert_eq!(in_header.collect::<Vec<_>>(), structs.each_ref().map(|(name, _)| *name));
    for (name, text) in structs {
        assert_eq!(compile(&text)?, (true, String::new()), "{name}");
    }
    assert!(compile(&format!("_Static_assert(GPUPOOL_API_VERSION == {VERSION}, \"\");\n"))?.0);
    Ok(())
}

#[test]
#[cfg_attr(miri, ignore = "it starts a compiler")]
fn what_is_not_so_fails_to_compile() -> Result<()> {
    let (_, text) = assertions::<Api>();
    for (right, wrong) in [
        ("offsetof(gpupool_api, size) == 8", "offsetof(gpupool_api, size) == 16"),
        ("int (**)(uint64_t ): 1", "int (**)(int ): 1"),
        ("const char *(**)(void)", "char *(**)(void)"),
        ("gpupool_api, synchronize)", "gpupool_api, synchronise)"),
    ] {
        assert!(text.contains(right), "{right} is not in {text}");
        let (compiles, said) = compile(&text.replace(right, wrong))?;
        assert!(!compiles && said.contains("error"), "{wrong}: {said}");
    }
    Ok(())
}

c_types! {
    [] PoolHandle, of => format!("gpupool_pool {of}");
    [] Checkpoint, of => format!("gpupool_checkpoint {of}");
    [] Attached, of => format!("gpupool_attached {of}");
    [] RangeHandle, of => format!("gpupool_range {of}");
    [] ClaimHandle, of => format!("gpupool_claim {of}");
}
