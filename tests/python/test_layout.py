"""The check of the layout, on two small crates: one keeps it and one breaks each rule."""

from pathlib import Path

import layout

# The good one: paths of every form, what a mod.rs passes on, tests that use what only tests may, a circle of two, and
# unsafe code in all places that are listed.
GOOD = {
    "src/lib.rs": "mod error;\npub use error::Error;\nuse python::module;",
    "src/error.rs": "use crate::ids::Device;",
    "src/ids.rs": "use std::sync::{Arc, Mutex};",
    "src/library/mod.rs": "mod vendor;\npub(crate) use vendor::Vendor;\npub unsafe fn own() {}",
    "src/library/vendor.rs": "use super::super::error;\n// use crate::handle::Pool;\nunsafe fn call() {}",
    "src/handle/mod.rs": "mod pool;\npub use pool::{Id as PoolId, Pool};",
    "src/handle/pool.rs": "use super::lease::Lease;\nuse crate::{Error, library::{self, Vendor}};\n",
    "src/handle/lease.rs": """
use crate::handle::Pool;

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::memory::plug;
}
""",
    "src/memory/mod.rs": "pub mod serve;\npub use serve::Serve;\nuse cache::Heap;\npub unsafe fn free() {}",
    "src/memory/stats.rs": "use super::{plug, serve::Serve, cache};",
    "src/memory/plug/mod.rs": "use crate::memory::Serve;\nunsafe impl Send for Plug {}",
    "src/memory/serve/mod.rs": "fn serve() { super::cache::heap() }",
    "src/memory/cache/mod.rs": """
const BIT: u32 = 0x80;
pub(super) const TWICE: u64 = 2 * crate::memory::tuning::PAGE;
const TEXT: &str = "10 s";
const EMPTY: [u64; 5] = [0; 5];
const fn pages(bytes: u64) -> u64 { bytes / 7 }

#[cfg(test)]
mod tests {
    const MANY: usize = 100;
}
""",
    "src/memory/tuning.rs": "pub(in crate::memory) const PAGE: u64 = 2 << 20;",
}


def check(folder: Path, files: dict[str, str]) -> list[str]:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return list(layout.broken(folder))


def test_a_crate_that_keeps_the_layout(tmp_path):
    assert check(tmp_path, GOOD) == []


def test_a_crate_that_breaks_it(tmp_path):
    ring = {f"src/memory/cache/r{place}.rs": f"use super::r{(place + 1) % 7}::R;" for place in range(7)}
    circle = {f"src/handle/c{place}.rs": f"use crate::handle::c{(place + 1) % 5}::C;" for place in range(5)}
    arrows = {
        "src/ids.rs": "fn device() -> crate::handle::Pool {}",
        "src/memory/serve/mod.rs": "use super::plug;",
        "src/memory/report/mod.rs": "use crate::{memory::{plug::Plug}};",
        "src/replay/mod.rs": "use crate::python;",
        "src/python.rs": "",
        "src/rest/mod.rs": "",
    }
    chosen = {
        "src/memory/serve/few.rs": "pub const FEW: u64 = 4 << 10;\nfn f() {\n    const T: Duration = f(3);\n}",
        "src/memory/tuning.rs": "".join(f"const N{number}: u8 = {number};\n" for number in range(36)),
    }
    cache = "src/memory/cache"
    assert check(tmp_path, GOOD | ring | circle | arrows | chosen) == [
        f"src: at most 5 files may be one circle, and 7 are: {', '.join(f'{cache}/r{place}.rs' for place in range(7))}",
        f"src/handle: at most 4 files may be one circle, and 5 are: {', '.join(circle)}",
        "src: the folder rest has no place in ARROWS",
        "src/ids.rs uses src/handle/pool.rs: ids may not use handle",
        "src/replay/mod.rs uses src/python.rs: replay may not use python",
        "src/memory/report/mod.rs uses src/memory/plug/mod.rs: report may not use plug",
        "src/memory/serve/mod.rs uses src/memory/plug/mod.rs: serve may not use plug",
        "src/memory/tuning.rs: at most 35 numbers may be chosen, and 36 are",
        "src/memory/serve/few.rs: FEW is chosen, and belongs in src/memory/tuning.rs, or is hexadecimal",
        "src/memory/serve/few.rs: T is chosen, and belongs in src/memory/tuning.rs, or is hexadecimal",
    ]


def test_a_function_that_is_kept_is_a_use_of_who_gives_it(tmp_path):
    setter = "pub fn set_tell(tell: fn(u64)) { TELL.set(tell) }"
    kept = {
        "src/sync/mod.rs": f"static TELL: OnceLock<fn(u64)> = OnceLock::new();\n{setter}",
        "src/memory/serve/told.rs": "use super::next0::N;\npub fn hear(bytes: u64) {}",
        "src/lib.rs": GOOD["src/lib.rs"] + "\nfn install() { crate::sync::set_tell(memory::serve::told::hear) }",
    }
    steps = {f"src/memory/serve/next{step}.rs": f"use super::next{step + 1}::N;" for step in range(3)}
    steps["src/memory/serve/next3.rs"] = "use crate::sync::set_tell;"
    circle = ", ".join([*steps, "src/memory/serve/told.rs", "src/sync/mod.rs"])
    keeper = "src/sync/mod.rs keeps a function that is given to it: call what is below, or have it in KEEPERS"
    assert check(tmp_path, GOOD | kept | steps) == [
        f"src: at most 5 files may be one circle, and 6 are: {circle}",
        keeper,
    ]
    # A function of C is a library's, and one in a box a program's.
    others = ['static TELL: OnceLock<extern "C" fn(u64)>', "static TELL: OnceLock<Box<dyn Fn(u64)>>"]
    for other in others:
        assert check(tmp_path, {"src/sync/mod.rs": f"{other} = OnceLock::new();\npub fn set_tell() {{}}"}) == []


def test_a_name_that_several_types_have(tmp_path):
    named = {
        "src/ids.rs": "pub struct Device(u32);\nimpl Deref for Device {\n    type Target = u32;\n}\ntype Key<T> = T;",
        "src/error.rs": """
#[cfg(test)]
mod tests {
    struct Device;
}

mod inner {
    pub(super) enum Place {}
}

#[cfg(test)]
mod models {
    struct Key;
}

impl Deref for Error {
    type Target = u32;
}
""",
        "src/handle/pool.rs": "#[cfg(loom)]\nstruct Lock;\n#[cfg(not(loom))]\nstruct Lock;\npub(crate) trait Place {}",
        "src/handle/tests.rs": "struct Lock;",
        "src/c_api/mod.rs": "pub struct Event;\nunsafe fn call() {}",
        "src/memory/stats.rs": "pub(in crate::memory) type Key<T> = T;\npub struct Event;",
    }
    assert check(tmp_path, GOOD | named) == [
        "Key is the name of several types, and each needs its own: src/ids.rs, src/memory/stats.rs",
        "Place is the name of several types, and each needs its own: src/error.rs, src/handle/pool.rs",
    ]


def test_counters_are_listed_where_they_are_declared_alone(tmp_path):
    names = ["live_bytes", "peak_bytes", "blocks", "frees", "waits"]
    fields = "".join(f"        /// What it counts.\n        pub {name}: u64,\n" for name in names)
    declared = f"counters! {{\n    $\n    /// Counts.\n    pub struct Stats as stats_counters {{\n{fields}    }}\n}}\n"
    listed = f"fn list() {{ [{', '.join(f'stats.{name}' for name in names)}] }}"
    some = {"src/memory/serve/some.rs": listed.replace("stats.waits", "0")}
    counting = {"src/memory/report/stats.rs": declared, "src/memory/report/summary.rs": listed}
    assert check(tmp_path, GOOD | counting | some) == []
    assert check(tmp_path, {"src/python/stats.rs": listed}) == [
        "src/python/stats.rs names the counters of Stats, which are listed in src/memory/report/stats.rs alone"
    ]


def test_nothing_of_pythons_is_made_or_ended_under_a_lock(tmp_path):
    kept = """
fn shared(&self) -> Result<Buffer> {
    let mut place = lock(&self.place);
    place.take().map_err(shared)?.ok_or_else(freed)
}
fn free(&self) -> PyResult<()> {
    let before = lock(&self.place).insert(1);
    drop(before);
    let place = lock(&self.place);

    place.count();
    drop(place);
    if lock(&self.place).is_some() {
        return Err(wrong().into());
    }
    let own = {
        let place = lock(&self.place);
        place.clone()
    };
    Ok(own.free()?)
}
"""
    broken = """
fn free(&self) -> PyResult<()> {
    lock(&self.place).insert(1);
    let place = lock(&self.place);

    if place.is_freed() {
        drop(place);
        return Err(freed().into());
    }
    drop(place);
    if let Some(callable) = lock(&self.place).as_ref() {
        callable.call0();
    }
    Ok(lock(&self.place)
        .share()?)
}
"""
    assert check(tmp_path, GOOD | {"src/python/kept.rs": kept}) == []
    told = "src/python/broken.rs makes or ends an object of Python's under a lock"
    lines = [
        "lock(&self.place).insert(1);",
        "let place = lock(&self.place);",
        "if let Some(callable) = lock(&self.place).as_ref() {",
        "Ok(lock(&self.place)",
    ]
    assert check(tmp_path, {"src/python/broken.rs": broken}) == [f"{told}: {line}" for line in lines]


def test_unsafe_code_is_where_it_may_be(tmp_path):
    block = "// SAFETY: it is alive.\nunsafe { free(address) }"
    allowed = {f"src/{name}.rs": block for name in ("runtime/cuda/memory", "process", "memory/pinned")}
    told = {
        "src/memory/pool/told.rs": '// Not unsafe.\nconst TEXT: &str = "unsafe";',
        "src/memory/pool/tests.rs": block,
        "src/handle/tested.rs": f"#[cfg(test)]\nmod tests {{\n    {block}\n}}",
    }
    assert check(tmp_path, GOOD | allowed | told) == []
    broken = {
        "src/memory/other.rs": block,
        "src/runtime/stream.rs": block.replace("it is alive", "as above, and it is alive"),
        "src/process.rs": "",
    }
    assert check(tmp_path, broken) == [
        "src/memory/other.rs has unsafe code, which may only be where UNSAFE says",
        "src/runtime/stream.rs has a SAFETY comment that refers to another: each names its invariant",
        "src/process.rs has no unsafe code, and needs no place in UNSAFE",
    ]
