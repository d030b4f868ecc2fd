"""One thing has one name in Python, C, C++ and Rust: what differs stands here, with why."""

import ast
import re
from pathlib import Path

import gpupool

ROOT = Path(__file__).parents[2]
INCLUDE = Path(gpupool.get_include())
STUBS = ast.parse((Path(gpupool.__file__).parent / "_native.pyi").read_text())

# Each class by its name in Python, with that in C++ and the beginning of its functions' names in C.
CLASSES = {
    "DeviceBuffer": ("device_buffer", None),
    "HandlePool": ("handle_pool", None),
    "Lease": ("lease", "lease_"),
    "MemPool": ("pool", "pool_"),
    "MemoryClaim": ("memory_claim", "claim_"),
    "MemoryRange": ("memory_range", "range_"),
    "PinnedBuffer": ("pinned_buffer", None),
    "PoolToken": (None, None),
    "ShareToken": (None, None),
}

# What Python does not have under the same name, and why.
DIFFERENCES = {
    "C++": {
        "device_buffer.release": "gives the block's ownership away, as std::unique_ptr does: Python's owner never does",
        "handle_pool.is_available": "a question, as standard C++ and Rust ask it; in Python a property",
        "handle_pool.warm_in_background": "an argument in Python: `background`",
        "memory_range.commit_discardable": "an argument in Python: `priority`",
        "memory_range.handle": "gives the range to functions in C",
        "pinned_buffer.release": "as device_buffer.release",
        "pool.allocate": "memory without an owner, for allocators; `device_buffer(pool, ...)` is Python's `empty`",
        "pool.handle": "gives the pool to functions in C",
    },
    "C": {
        "pool_allocate": "memory without an owner, which only C needs",
        "pool_by_id": "finds a pool by its id; in Python the object is there",
        "pool_checkpoint": "for PyTorch's graph trees, by its plug alone",
        "pool_create": "`MemPool(...)`",
        "pool_enter": "`use_mem_pool`, whose end is scope_leave",
        "pool_release": "the end of the object",
        "pool_remove_segment_callback": "`SegmentCallback.remove`",
        "pool_restore": "as pool_checkpoint",
        "range_bytes": "`committed_bytes` and `discardable_bytes` in one call",
        "range_drop": "the end of the object",
        "range_release": "`free` with the callbacks, whose contexts C's caller then frees",
    },
    "Rust": {
        "DeviceBuffer.copy_from_pinned": "by the type of the argument in Python",
        "DeviceBuffer.copy_to_pinned": "by the type of the argument in Python",
        "DeviceBuffer.free_on": "freeing is `drop`; this is it in the order of another stream",
        "DeviceBuffer.into_ptr": "gives the block's ownership away: Python's owner never does",
        "DeviceBuffer.send": "what pickling does in Python",
        "HandlePool.is_available": "a question, as Rust asks it; in Python a property",
        "HandlePool.is_closed": "a call on a closed pool raises in Python",
        "HandlePool.is_loaded": "a question, as Rust asks it; in Python a property",
        "HandlePool.lease_within": "an argument in Python: `timeout`",
        "HandlePool.mem_pool": "`get_mem_pool`: Rust's getters have no `get_`",
        "HandlePool.new": "`HandlePool(...)`",
        "HandlePool.warm_in_background": "an argument in Python: `background`",
        "Lease.as_ptr": "`int(lease)`",
        "MemPool.builder": "`MemPool(...)`",
        "MemPool.enter": "`use_mem_pool(pool)`",
        "MemPool.enter_all_threads": "`use_mem_pool(pool, all_threads=True)`",
        "MemPool.is_closed": "a call on a closed pool raises in Python",
        "PinnedBuffer.as_ptr": "the same address as a pointer of Rust",
        "PinnedBuffer.into_ptr": "as DeviceBuffer.into_ptr",
        "PoolToken.enter_all_threads": "`use_mem_pool(token, all_threads=True)`",
        "ShareToken.as_bytes": "`bytes(token)`",
        "ShareToken.from_bytes": "`ShareToken(bytes)`",
    },
}


def members_in_python():
    found = {}
    for node in STUBS.body:
        if isinstance(node, ast.ClassDef) and node.name in CLASSES:
            functions = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
            found[node.name] = {name for name in functions if not name.startswith("_")}
    return found


def members_in_cpp():
    """Yield each public member of the classes of the headers: class and name."""
    names = {own: name for name, (own, _) in CLASSES.items() if own}
    text = "\n".join(path.read_text() for path in sorted(INCLUDE.glob("*.hpp")))
    # What buffers have in common.
    owners = {"block": ["device_buffer", "pinned_buffer"], **{own: [own] for own in names}}
    for name, body in re.findall(
        r"^(?:template <[^;{]*> )?class (?:\[\[nodiscard\]\] )?(\w+)[^;{]*\{(.*?)^\};", text, re.M | re.S
    ):
        public = re.split(r"^ (?:private|protected):", body.partition("public:")[2], maxsplit=1, flags=re.M)[0]
        functions = re.findall(r"^  (?! |explicit)[\w:<>&* ]+[ *&](\w+)\([^;{]*\)[\w ]*\{", public, re.M)
        for owner in owners.get(name, []):
            yield from ((names[owner], owner, function) for function in functions if function != "bool")


def members_in_c():
    text = (INCLUDE / "gpupool.h").read_text()
    table = text[text.index("typedef struct gpupool_api") :]
    for function in re.findall(r"^  [\w ]+\*?\(\*(\w+)\)\(", table, re.M):
        for name, (_, prefix) in CLASSES.items():
            if prefix and function.startswith(prefix):
                yield name, function, function.removeprefix(prefix)


def members_in_rust():
    for path in sorted((ROOT / "src").rglob("*.rs")):
        text = path.read_text()
        for name, body in re.findall(r"^impl(?:<[^>]*>)? (\w+)(?:<[^>]*>)? \{\n(.*?)^\}", text, re.M | re.S):
            if name in CLASSES:
                yield from ((name, function) for function in re.findall(r"^    pub fn (\w+)", body, re.M))


def is_known(known, name):
    return bool({name, name.removeprefix("set_")} & known)


def test_each_interface_has_pythons_names_but_for_those_that_are_told():
    python = members_in_python()
    assert python.keys() == CLASSES.keys()
    told = {
        "C++": {f"{own}.{name}" for of, own, name in members_in_cpp() if not is_known(python[of] | {own}, name)},
        "C": {name for of, name, member in members_in_c() if not is_known(python[of], member)},
        "Rust": {f"{of}.{name}" for of, name in members_in_rust() if not is_known(python[of], name)},
    }
    for interface, names in told.items():
        assert names == DIFFERENCES[interface].keys(), interface


def test_every_class_is_read_in_every_interface():
    # A claim in C++ has no members.
    with_members = {name for name, (own, _) in CLASSES.items() if own} - {"MemoryClaim"}
    assert {of for of, *_ in members_in_cpp()} == with_members
    assert {of for of, *_ in members_in_c()} == {name for name, (_, prefix) in CLASSES.items() if prefix}
    assert {of for of, _ in members_in_rust()} == CLASSES.keys()
