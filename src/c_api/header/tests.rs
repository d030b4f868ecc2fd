//! A C compiler compares the structs with the header's.

use std::io::{Result, Write};
use std::process::{Command, Stdio};

use super::{DeviceStats, HeaderStruct, PoolId, Stat};
use crate::c_api::{
    Api, Block, Durations, Event, PoolOptions, PoolSource, Recording, Segment, SnapshotVisitor, VERSION,
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

/// Returns C that fails to compile unless the header's struct is as long, and has these fields of these types there.
fn assertions<T: HeaderStruct>() -> String {
    let (struct_name, size) = (T::NAME, size_of::<T>());
    let mut text = format!("_Static_assert(sizeof({struct_name}) == {size}, \"size of {struct_name}\");\n");
    for field in T::fields() {
        let (name, offset, pointer) = (field.name, field.offset, field.pointer);
        text += &format!(
            "_Static_assert(offsetof({struct_name}, {name}) == {offset}, \"place of {struct_name}.{name}\");\n\
             _Static_assert(_Generic(&(({struct_name} *)0)->{name}, {pointer}: 1, default: 0), \
             \"{struct_name}.{name} is pointed to by {pointer}\");\n"
        );
    }
    text
}

/// Returns the assertions on each struct, by the struct's name.
macro_rules! structs {
    ($($type:ty),*) => {
        [$((<$type>::NAME, assertions::<$type>())),*]
    };
}

#[test]
#[cfg_attr(miri, ignore = "it starts a compiler")]
fn the_header_has_the_structs_and_the_functions() -> Result<()> {
    let structs = structs![
        PoolId,
        PoolSource,
        PoolOptions,
        Block,
        Segment,
        Event,
        SnapshotVisitor,
        Recording,
        Stat,
        DeviceStats,
        Durations,
        Api
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
    let text = assertions::<Api>();
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
