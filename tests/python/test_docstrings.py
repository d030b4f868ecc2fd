"""Every public name is documented where Python shows it: in ``help()``, by its ``repr`` and by what completes it."""

import ast
import doctest
import importlib
import inspect
import operator
import os
import pydoc
import re
import subprocess
import sys
import types
from pathlib import Path

import docstring_examples
import gpupool
import pytest
from gpupool import _native

MODULES = sorted(set(dir(gpupool)) - set(gpupool.__all__))
# Modules whose examples need a framework, most of them a GPU too.
NEED_A_FRAMEWORK = {
    *("cuda_core", "cupy", "dask", "numba", "nvmath", "onnxruntime", "prometheus", "ray", "rmm"),
    *("torch", "warp", "worker"),
}
# What Python itself gives a class, and the operators that `help` shows by their own words.
ORDINARY = {
    *("__annotations__", "__buffer__", "__dataclass_fields__", "__dataclass_params__", "__delattr__", "__dict__"),
    *("__doc__", "__eq__", "__ge__", "__gt__", "__hash__", "__index__", "__init__", "__int__", "__le__", "__len__"),
    *("__lt__", "__match_args__", "__module__", "__ne__", "__new__", "__release_buffer__", "__repr__", "__setattr__"),
    *("__annotate__", "__annotate_func__", "__annotations_cache__", "__firstlineno__", "__replace__"),
    *(
        "__static_attributes__",
        "__abstractmethods__",
        "__parameters__",
        "__post_init__",
        "__str__",
        "__subclasshook__",
        "__weakref__",
    ),
}


def public_objects():
    """Return all that users can name, by its name: modules, functions, classes and their members."""
    found = {"gpupool": gpupool}
    for name in gpupool.__all__:
        found[name] = getattr(gpupool, name)
    for module in MODULES:
        found[module] = importlib.import_module(f"gpupool.{module}")
        for name in found[module].__all__:
            # Those of a framework that is not here.
            try:
                found[f"{module}.{name}"] = getattr(found[module], name)
            except gpupool.LibraryNotFound:
                continue
    for name, value in [*found.items()]:
        if isinstance(value, type):
            # A field's default stands where its docstring would be: the class's tells of fields.
            fields = getattr(value, "__dataclass_fields__", {})
            # A compiled class's members have another order in each process.
            members = {name: held for name, held in sorted(vars(value).items()) if name not in {*ORDINARY, *fields}}
            own = {member: held for member, held in members.items() if not member.startswith("_") or "__" in member}
            found |= {f"{name}.{member}": held for member, held in own.items()}
    return found


OBJECTS = public_objects()
# The classes of objects, by their names: protocols are for annotations alone.
CLASSES = {
    value: name
    for name, value in OBJECTS.items()
    if isinstance(value, type)
    and name.removeprefix("typing.").count(".") == 0
    and not getattr(value, "_is_protocol", False)
}
# Numbers and texts have docstrings of their own classes, type aliases those of what they stand for, if any.
UNDOCUMENTED = str | int | tuple | dict | types.GenericAlias | types.UnionType
DOCUMENTED = {name: value for name, value in OBJECTS.items() if not isinstance(value, UNDOCUMENTED)}


def text_of(value):
    """Return the docstring of an object; of a type alias nothing, which its module describes."""
    return inspect.getdoc(value) or ""


def test_every_public_name_has_a_docstring():
    missing = [name for name, value in DOCUMENTED.items() if len(text_of(value)) < 10]
    assert missing == []


def test_type_aliases_are_explained_where_they_are():
    for name in gpupool.typing.__all__:
        if not isinstance(getattr(gpupool.typing, name), type):
            assert f"``{name}`` is " in gpupool.typing.__doc__


def stubs():
    """Return the docstrings of the stubs, by the names of what they are of."""
    tree = ast.parse((Path(gpupool.__file__).parent / "_native.pyi").read_text())
    found = {}

    def visit(place, prefix):
        for node in place.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text is not None:
                    found[prefix + node.name] = text
                if isinstance(node, ast.ClassDef):
                    visit(node, f"{node.name}.")

    visit(tree, "")
    return found


STUBS = stubs()


def test_the_modules_docstrings_are_those_of_the_stubs():
    assert len(STUBS) > 200
    named = [name for name in STUBS if name.split(".")[-1] not in ORDINARY]
    found = {name: text_of(operator.attrgetter(name)(_native)) for name in named}
    assert found == {name: STUBS[name] for name in named}


@pytest.mark.parametrize("name", OBJECTS)
def test_pydoc_shows_it(name):
    try:
        shown = pydoc.plain(pydoc.render_doc("gpupool" if name == "gpupool" else f"gpupool.{name}"))
    except gpupool.LibraryNotFound as error:
        # pydoc looks at all that a module has, also at what is derived from a framework's classes.
        pytest.skip(str(error))
    lines = text_of(OBJECTS[name]).splitlines()
    if name in DOCUMENTED and lines and name.split(".")[0] not in NEED_A_FRAMEWORK:
        assert lines[0] in shown


def test_signatures_are_told():
    for name in gpupool.__all__:
        if inspect.isroutine(getattr(gpupool, name)) or name in ("HandlePool", "MemPool", "Stream"):
            assert "arguments" not in str(inspect.signature(getattr(gpupool, name))), name
    for name in ("copy_from", "copy_to", "fill", "free", "record_stream"):
        assert "stream" in inspect.signature(getattr(gpupool.DeviceBuffer, name)).parameters


def examples():
    """Return the examples of all docstrings, by the names of what they are of."""
    parser = doctest.DocTestParser()
    texts = {name: text_of(value) for name, value in DOCUMENTED.items()}
    tests = {name: parser.get_doctest(text, {}, name, None, None) for name, text in texts.items()}
    return {name: test for name, test in tests.items() if test.examples and has_own(name)}


def has_own(name):
    """Return whether an object's docstring is its own, not its class's."""
    value = OBJECTS[name]
    return not isinstance(value, gpupool.HandlePool | gpupool.typing.CApi)


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name, nothing_left):
    test = EXAMPLES[name]
    if name.split(".")[0] in NEED_A_FRAMEWORK:
        for example in test.examples:
            compile(example.source, name, "single")
        return
    test.globs = {"gpupool": gpupool}
    if name == "get_include":
        test.globs["os"] = importlib.import_module("os")
    told = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append)
    assert told == []
    test.globs.clear()


def test_examples_that_need_a_framework_run_where_it_is():
    # Those of prometheus_client here; tests/gpu has the others.
    names = {name.split(".")[0] for name in EXAMPLES} & NEED_A_FRAMEWORK
    assert names == docstring_examples.SETUPS.keys()
    command = [sys.executable, docstring_examples.__file__, "prometheus"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "2 examples\n"


def test_what_a_new_user_meets_first_has_an_example():
    first = {"gpupool", "HandlePool", "HandlePool.handle", "HandlePool.lease", "MemPool", "MemPool.empty", "Stream"}
    first |= {"DeviceBuffer", "DeviceBuffer.copy_from", "DeviceBuffer.copy_to", "DeviceBuffer.fill", "PinnedBuffer"}
    first |= {"empty", "empty_pinned", "stream", "current_stream", "synchronize", "use_mem_pool", "memory_stats"}
    assert first - EXAMPLES.keys() == set()


def test_completion_shows_public_names_alone():
    assert set(dir(gpupool)) == {*gpupool.__all__, *MODULES}
    for module in MODULES:
        found = importlib.import_module(f"gpupool.{module}")
        assert dir(found) == sorted(found.__all__), module


def objects():
    """Return an object of each class, with what its repr says while it is of use and after."""
    stream = gpupool.Stream()
    pool = gpupool.MemPool()
    _native.host_begin_capture(stream)
    capture = pool.capture(stream)
    with capture as graph_memory:
        pass
    _native.host_end_capture(stream)
    callback = gpupool.on_oom(repr)
    whole, told = gpupool.MemPool(no_split=True), []
    segment_callback = whole.on_segment(told.append)
    whole.empty(5).free()
    ranged = gpupool.MemPool().reserve_range(4 << 20)
    discard_callback = ranged.on_discard(told.append)
    own = gpupool.HandlePool("own", iter(range(1, 9)).__next__, lambda handle: None)
    pool_id = rf"\({pool.id[0]}, {pool.id[1]}\)"
    scope = gpupool.use_mem_pool(pool.token(), all_threads=True)
    return [
        (gpupool.simulated, r"<gpupool.HandlePool simulated>", None, None),
        (own, r"<gpupool.HandlePool own>", own.close, r"<gpupool.HandlePool own \(closed\)>"),
        (
            lease := gpupool.simulated.lease(),
            r"<gpupool.typing.Lease simulated 0x\w+, device=0 \(simulated\)>",
            lease.release,
            r"<gpupool.typing.Lease simulated \(over\)>",
        ),
        (gpupool.simulated.stats(), r"HandleStats\(created=\d+, .*\)", None, None),
        (stream, rf"gpupool.Stream\(ptr={stream.ptr:#x}, device=0 \(simulated\)\)", None, None),
        (
            gpupool.current_stream(1),
            r"gpupool.Stream\(ptr=0x0, device=1 \(simulated\), the legacy default stream\)",
            None,
            None,
        ),
        (gpupool.stream(2), r"gpupool.stream\(2\)", None, None),
        (gpupool.empty(6).share(), rf"gpupool.typing.ShareToken\(of 6 bytes of process {os.getpid()}\)", None, None),
        (
            buffer := gpupool.empty(5),
            r"gpupool.DeviceBuffer\(ptr=0x\w+, nbytes=5, device=0 \(simulated\)\)",
            buffer.free,
            r"gpupool.DeviceBuffer\(freed\)",
        ),
        (
            pinned := gpupool.empty_pinned(5),
            r"gpupool.PinnedBuffer\(ptr=0x\w+, nbytes=5, numa=0 \(simulated\)\)",
            pinned.free,
            r"gpupool.PinnedBuffer\(freed\)",
        ),
        (
            graph_memory,
            rf"gpupool.typing.GraphMemory\(pool_id={pool_id}, device=0 \(simulated\)\)",
            graph_memory.reset,
            r".*without memory.*it was reset\)",
        ),
        (
            capture,
            rf"gpupool.typing.Capture\(pool_id={pool_id}, stream={stream.ptr:#x}, device=0 \(simulated\)\)",
            None,
            None,
        ),
        (pool.token(), rf"gpupool.typing.PoolToken\(id={pool_id}, device=0 \(simulated\)\)", None, None),
        (
            scope,
            rf"gpupool.use_mem_pool\(gpupool.typing.PoolToken\(id={pool_id}, device=0 .*\), all_threads=True\)",
            None,
            None,
        ),
        (
            pool,
            rf"gpupool.MemPool\(id={pool_id}, device=0 \(simulated\), live_bytes=0, reserved_bytes=0\)",
            pool.close,
            rf"gpupool.MemPool\(id={pool_id}, .*, closed\)",
        ),
        (pool.stats(), r"PoolStats\(live_bytes=\d+, .*\)", None, None),
        (gpupool.memory_stats(), r"MemoryStats\(live_bytes=\d+, .*\)", None, None),
        (
            callback,
            r"<gpupool.typing.OomCallback repr>",
            callback.remove,
            r"<gpupool.typing.OomCallback repr, removed>",
        ),
        (
            segment_callback,
            r"<gpupool.typing.SegmentCallback list.append>",
            segment_callback.remove,
            r"<gpupool.typing.SegmentCallback list.append, removed>",
        ),
        (
            told[0],
            r"gpupool.typing.SegmentEvent\(kind='added', address=0x\w+, nbytes=2097152, device=0 \(simulated\), .*\)",
            None,
            None,
        ),
        (
            discard_callback,
            r"<gpupool.typing.DiscardCallback list.append>",
            discard_callback.remove,
            r"<gpupool.typing.DiscardCallback list.append, removed>",
        ),
        (
            ranged,
            r"gpupool.MemoryRange\(ptr=0x\w+, nbytes=4194304, committed_bytes=0, device=0 \(simulated\)\)",
            ranged.free,
            r"gpupool.MemoryRange\(freed\)",
        ),
        (gpupool.c_api, r"<gpupool.typing.CApi: addresses of C functions, malloc=0x\w+, free=0x\w+>", None, None),
        (
            claim := gpupool.claim(5),
            r"<gpupool.typing.MemoryClaim nbytes=5, device=0 \(simulated\)>",
            claim.release,
            r"<gpupool.typing.MemoryClaim nbytes=5, device=0 \(simulated\), over>",
        ),
        (
            next(each for each in gpupool.neighbours() if each.is_self),
            rf"<gpupool.typing.Neighbour {os.getpid()} \".*\", device=0 .*, reserved_bytes=.*, this process>",
            None,
            None,
        ),
        (
            next(pool for each in gpupool.neighbours(pools=True) if each.is_self for pool in each.pools),
            r"<gpupool.typing.NeighbourPool \(\d+, \d+\), reserved_bytes=\d+, live_bytes=\d+>",
            None,
            None,
        ),
        (gpupool.info(), r"Info\(.*", None, None),
        (gpupool.memory_summary(), r"MemorySummary\(.*", None, None),
        (gpupool.plot(), r"<gpupool.typing.Plot of this process: a memory snapshot, device 0.*>", None, None),
    ]


def test_every_object_says_what_it_is_and_shows_public_names_alone():
    found = objects()
    for value, said, end, said_then in found:
        assert re.fullmatch(said, repr(value)), repr(value)
        shown = [name for name in dir(value) if not name.startswith("_")]
        fields = getattr(value, "__dataclass_fields__", {})
        name = CLASSES[type(value)]
        assert [member for member in shown if f"{name}.{member}" not in OBJECTS and member not in fields] == []
        if end is not None:
            end()
            assert re.fullmatch(said_then, repr(value)), repr(value)
    classes = {type(value) for value, *_ in found}
    assert {value for value in CLASSES if not issubclass(value, gpupool.Error)} == classes
