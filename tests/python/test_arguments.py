"""Arguments of a wrong kind: a bool is no number, no device and no stream, and nothing that is wrong crashes."""

import sys
from types import SimpleNamespace

import gpupool
import gpupool.cupy as _cupy
import numpy
import pytest
from gpupool import _native
from gpupool._frameworks import plug as _plug
from gpupool._notebook import plot as _plot


@pytest.mark.parametrize("wrong", [True, False, 1.0, "1", None])
def test_what_is_no_stream_is_refused_before_the_block(wrong):
    with pytest.raises(gpupool.InvalidValue, match=f"{type(wrong).__name__} is not a stream"):
        gpupool.stream(wrong)


@pytest.mark.parametrize("wrong", [True, False, 1.0, "1", -1, -(2**70), 3, 4096, 2**31, 2**63, 2**64 - 1, 2**64, 2**70])
def test_what_is_no_stream_is_refused_everywhere(make_pool, wrong):
    pool, buffer, pinned = make_pool(), gpupool.empty(1000), gpupool.empty_pinned(1000)
    is_address = isinstance(wrong, int) and not isinstance(wrong, bool)
    said = f"{wrong}|{wrong:#x}" if is_address else "is not a stream"
    for call in (
        lambda: gpupool.empty(1, wrong),
        lambda: buffer.record_stream(wrong),
        lambda: buffer.free(wrong),
        lambda: buffer.share(wrong),
        lambda: buffer.fill(0, wrong),
        lambda: buffer.copy_from(bytes(1000), wrong),
        lambda: buffer.copy_to(bytearray(1000), wrong),
        lambda: pinned.record_stream(wrong),
        lambda: pinned.free(wrong),
        lambda: pool.handle(wrong),
        lambda: pool.handle(stream=wrong),
        lambda: pool.lease(wrong),
        lambda: gpupool.MemPool().capture(wrong),
        lambda: gpupool.stream(wrong).__enter__(),
    ):
        with pytest.raises((gpupool.InvalidValue, gpupool.LibraryError), match=said):
            call()
    buffer.free()
    pinned.free()


def raising(raised, *methods):
    """Return an object whose methods of these names raise."""

    def fail(*_):
        raise raised

    return type("Raising", (), dict.fromkeys(methods, fail))()


def lending(raised, name):
    """Return bytes with a property that raises."""

    def fail(_):
        raise raised

    return type("Lending", (bytearray,), {name: property(fail)})(1)


def with_stream_source(answer):
    former = _native.set_stream_source(lambda device: answer)
    try:
        gpupool.empty(1)
    finally:
        _native.set_stream_source(former)


# Calls with an argument whose own code raises.
OWN_CODE = {
    "address of a stream": lambda raised: gpupool.empty(1, SimpleNamespace(ptr=raising(raised, "__index__"))),
    "address by the protocol": lambda raised: gpupool.empty(
        1, SimpleNamespace(__cuda_stream__=(0, raising(raised, "__index__")))
    ),
    "version of the protocol": lambda raised: gpupool.empty(
        1, SimpleNamespace(__cuda_stream__=(raising(raised, "__index__"), 1))
    ),
    "device of a stream": lambda raised: gpupool.empty(
        1, SimpleNamespace(ptr=0, device_id=raising(raised, "__index__"))
    ),
    "stream source": lambda raised: with_stream_source(raising(raised, "__index__")),
    "device": lambda raised: gpupool.Stream(raising(raised, "__index__")),
    "device of PyTorch": lambda raised: gpupool.Stream(SimpleNamespace(index=raising(raised, "__index__"))),
    "pages": lambda raised: gpupool.MemPool().reserve_range(2 << 20).commit(raising(raised, "__iter__")),
    "a page": lambda raised: gpupool.MemPool().reserve_range(2 << 20).commit([raising(raised, "__index__")]),
    "start": lambda raised: (
        gpupool.MemPool().reserve_range(2 << 20).commit(raising(raised, "__index__", "__iter__"), 1)
    ),
    "obj of memory": lambda raised: gpupool.empty(1).copy_from(lending(raised, "obj")),
    "base of memory": lambda raised: gpupool.empty(1).copy_to(lending(raised, "base")),
    "nbytes": lambda raised: gpupool.empty(raising(raised, "__index__")),
}
if sys.version_info >= (3, 12):
    OWN_CODE["memory"] = lambda raised: gpupool.empty(1).copy_from(raising(raised, "__buffer__"))
    OWN_CODE["array of pages"] = lambda raised: (
        gpupool.MemPool().reserve_range(2 << 20).commit(raising(raised, "__buffer__", "__iter__"))
    )


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("argument", OWN_CODE)
def test_what_an_arguments_own_code_raises_is_raised(argument, raised):
    with pytest.raises(raised):
        OWN_CODE[argument](raised)


class Stopped(BaseException):
    """What no code catches by mistake, as KeyboardInterrupt; pytest itself shows arguments of a test that fails."""


# Calls whose errors show an argument.
SHOWN = {
    "a number": gpupool.empty,
    "seconds": lambda wrong: gpupool.simulated.lease(timeout=wrong),
    "a device": gpupool.Stream,
    "a stream": lambda wrong: gpupool.empty(1, wrong),
    "a stream by the protocol": lambda wrong: gpupool.empty(1, SimpleNamespace(__cuda_stream__=(wrong, 1))),
    "a stream of another device": lambda wrong: gpupool.simulated.handle(
        SimpleNamespace(ptr=0, device_id=1, shown=wrong), 0
    ),
    "a stream source": lambda wrong: with_stream_source(wrong),
    "a pool": gpupool.use_mem_pool,
    "a pool's id": lambda wrong: gpupool.torch.begin_allocate_to_pool(0, wrong),
    "a pool's id of three parts": lambda wrong: gpupool.torch.begin_allocate_to_pool(0, (1, 2, wrong)),
    "pages": lambda wrong: gpupool.MemPool().reserve_range(2 << 20).commit(wrong),
    "a function": lambda wrong: gpupool.HandlePool("own", wrong, lambda handle: None),
    "what is recorded": gpupool.record_memory_history,
    "names of events": lambda wrong: gpupool.record_memory_history(skip_actions=wrong),
    "a backup": lambda wrong: gpupool.MemPool().sleep(wrong),
}


@pytest.mark.parametrize("argument", SHOWN)
def test_an_argument_that_cannot_be_shown_is_refused_all_the_same(argument):
    with pytest.raises((gpupool.Error, TypeError), match="without a repr"):
        SHOWN[argument](raising(RuntimeError, "__repr__"))
    with pytest.raises(Stopped):
        SHOWN[argument](raising(Stopped, "__repr__"))


def test_the_simulation_is_asked_for_no_handle_that_is_not_there():
    with gpupool.simulated.lease() as lease:
        gone = int(lease)
        assert _native.host_stream_of(gone) == 0
        lease.discard()
    gpupool.simulated.trim()
    for address in (gone, 0, 1, 8, 4096, 2**63, 2**64 - 1):
        with pytest.raises(gpupool.InvalidValue, match="not a live handle"):
            _native.host_stream_of(address)


# What is no stream that was made, and no device: numbers at edges, and what is no number.
WRONG = [-1, 77, 2**31, 2**32, 2**63, 2**64 - 1, 2**70, -1.0, float("nan"), float("inf"), 1e300, "x", b"", None, []]


@pytest.mark.parametrize("wrong", WRONG)
def test_controls_of_the_simulation_refuse_what_is_wrong(wrong):
    for control in (
        _native.host_submit,
        lambda stream: _native.host_complete(stream, 1),
        _native.host_begin_capture,
        _native.host_end_capture,
        _native.host_destroy_stream,
        _native.host_stream_of,
        _native.host_create_stream,
        _native.host_inject,
    ):
        with pytest.raises((gpupool.Error, TypeError, OverflowError)):
            control(wrong)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), 1e300, "x", None])
def test_controls_of_the_simulation_refuse_costs_that_cannot_be(wrong):
    with pytest.raises((gpupool.InvalidValue, TypeError)):
        _native.simulate_costly_handles(wrong, 1)


@pytest.mark.parametrize("number", [1 << 30, 1e9])
def test_a_number_is_no_allocator_of_a_pool(number):
    with pytest.raises(
        gpupool.InvalidValue,
        match=rf"allocator, and {number} is a number: was limit={number} meant".replace("+", r"\+"),
    ):
        gpupool.MemPool(number)


NAN, INFINITY = float("nan"), float("inf")
# What is no number of anything: of bytes, devices, nodes or handles.
NO_NUMBER = [-1, -(2**63) - 1, -(2**70), 2**64, 2**70, True, False, 1.5, -0.5, 2.0, NAN, INFINITY, "1", b"", [], {}]
# What is no number of a device, a node or the like, of which there are few.
NO_ORDINAL = [*NO_NUMBER, 77, 2**31, 2**32, 2**63, 2**64 - 1]
NO_FRACTION = [-1, 2, -0.5, 1.5, 2**40, 10**400, NAN, INFINITY, True, False, "1", "x", b"1", [], {}]
NO_ID = [(), (1,), (1, 2, 3), 5, None, "ab", [1], (0, -1), (0, 2**64), (0, 1.5), (0, True), ("a", "b"), (None, None)]


def takes_a_number(pool=None):
    """What takes a number, by name, with what is none; without a pool nothing is to be called."""
    return {
        "empty": (gpupool.empty, NO_NUMBER),
        "MemPool.empty": (lambda nbytes: pool.empty(nbytes), NO_NUMBER),
        "empty_pinned": (gpupool.empty_pinned, NO_NUMBER),
        "empty_pinned numa": (lambda numa: gpupool.empty_pinned(1, numa=numa), NO_ORDINAL),
        "warm_pinned": (lambda nbytes: gpupool.warm_pinned(nbytes), NO_NUMBER),
        "warm_pinned numa": (lambda numa: gpupool.warm_pinned(1, numa=numa), NO_ORDINAL),
        "set_pinned_limit": (gpupool.set_pinned_limit, NO_NUMBER),
        "pinned_stats": (gpupool.pinned_stats, NO_ORDINAL),
        "reset_peak_pinned_stats": (gpupool.reset_peak_pinned_stats, NO_ORDINAL),
        "memory_stats": (gpupool.memory_stats, NO_ORDINAL),
        "reset_peak_memory_stats": (gpupool.reset_peak_stats, NO_ORDINAL),
        "memory_summary": (gpupool.memory_summary, NO_ORDINAL),
        "memory_snapshot": (lambda device: gpupool.memory_snapshot(device=device), NO_ORDINAL),
        "sleep": (gpupool.sleep, NO_ORDINAL),
        "sleep backup": (lambda backup: gpupool.sleep(0, backup=backup), NO_NUMBER),
        "wake": (gpupool.wake, NO_ORDINAL),
        "MemPool.sleep backup": (lambda backup: pool.sleep(backup), NO_NUMBER),
        "synchronize": (gpupool.synchronize, NO_ORDINAL),
        "current_stream": (gpupool.current_stream, NO_ORDINAL),
        "Stream": (gpupool.Stream, NO_ORDINAL),
        "MemPool device": (lambda device: gpupool.MemPool(device=device), NO_ORDINAL),
        "MemPool limit": (lambda limit: gpupool.MemPool(limit=limit), NO_NUMBER),
        "MemPool reserve": (lambda reserve: gpupool.MemPool(reserve=reserve), NO_NUMBER),
        "MemPool.limit": (lambda limit: setattr(pool, "limit", limit), NO_NUMBER),
        "get_per_process_memory_fraction": (gpupool.get_per_process_memory_fraction, NO_ORDINAL),
        "set_per_process_memory_fraction": (gpupool.set_per_process_memory_fraction, NO_FRACTION),
        "its device": (lambda device: gpupool.set_per_process_memory_fraction(1.0, device), NO_ORDINAL),
        "enable_peer_access": (lambda device: gpupool.enable_peer_access(device, 0), NO_ORDINAL),
        "use_mem_pool": (gpupool.use_mem_pool, NO_NUMBER),
        "use_mem_pool device": (lambda device: gpupool.use_mem_pool(pool, device), NO_ORDINAL),
        "begin_allocate_to_pool": (lambda device: gpupool.torch.begin_allocate_to_pool(device, (0, 1)), NO_ORDINAL),
        "begin_allocate_to_pool id": (lambda pool_id: gpupool.torch.begin_allocate_to_pool(0, pool_id), NO_ID),
        "end_allocate_to_pool id": (lambda pool_id: gpupool.torch.end_allocate_to_pool(0, pool_id), NO_ID),
        "release_pool id": (lambda pool_id: gpupool.torch.release_pool(0, pool_id), NO_ID),
        "pool_use_count id": (lambda pool_id: gpupool.torch.pool_use_count(0, pool_id), NO_ID),
        "memory_snapshot id": (gpupool.memory_snapshot, [wrong for wrong in NO_ID if wrong is not None]),
        "fill": (lambda byte: gpupool.empty(1000).fill(byte), [*NO_NUMBER, 256, 2**32]),
        "handle device": (lambda device: gpupool.simulated.handle(device=device), NO_ORDINAL),
        "lease device": (lambda device: gpupool.simulated.lease(device=device), NO_ORDINAL),
        "lease timeout": (
            lambda timeout: gpupool.simulated.lease(timeout=timeout),
            [-1, -0.5, 10**400, NAN, True, False, "1", []],
        ),
        "HandlePool.limit": (lambda limit: setattr(gpupool.simulated, "limit", limit), [*NO_NUMBER, 0]),
        "HandlePool.warm": (gpupool.simulated.warm, [*NO_NUMBER, 2**63]),
        "HandlePool.warm device": (lambda device: gpupool.simulated.warm(1, device), NO_ORDINAL),
        "HandlePool.trim": (gpupool.simulated.trim, NO_ORDINAL),
        "HandlePool.stats": (gpupool.simulated.stats, NO_ORDINAL),
        "handle_stats": (gpupool.handle_stats, NO_ORDINAL),
        "record_memory_history": (lambda most: gpupool.record_memory_history(max_entries=most), NO_NUMBER),
        "on_oom": (gpupool.on_oom, NO_NUMBER),
    }


def names(error, value):
    """Return whether an error says which value is wrong: the value as Python or Rust writes it, or its type."""
    if isinstance(value, tuple) and any(names(error, part) for part in value):
        return True
    said = str(error).lower()
    return any(text.lower() in said for text in (repr(value), str(value), type(value).__name__))


@pytest.mark.parametrize("call", list(takes_a_number()))
def test_a_wrong_value_is_an_error_that_names_it(call):
    function, wrong_values = takes_a_number(gpupool.MemPool())[call]
    for wrong in wrong_values:
        # A whole number that is wrong is so by its value, anything else may be by its type.
        is_number = isinstance(wrong, int) and not isinstance(wrong, bool) and wrong_values is not NO_ID
        kinds = (gpupool.InvalidValue, gpupool.OutOfMemory if is_number else TypeError)
        with pytest.raises(kinds) as caught:
            function(wrong)
        if wrong != 10**400:
            assert names(caught.value, wrong), f"{call}({wrong!r}): {caught.value}"


# Numbers as NumPy has them.
FRACTIONS = [numpy.float16(1), numpy.float32(1), numpy.float64(1), numpy.int8(1), numpy.uint64(1)]


def test_numbers_of_numpy_are_numbers(make_pool):
    pool = make_pool()
    for number in FRACTIONS:
        gpupool.set_per_process_memory_fraction(number)
        assert gpupool.get_per_process_memory_fraction() == 1.0
        assert _cupy._part(0, None, number) == 1.0
        pool.lease(timeout=number).release()
        assert _plot._moment(number) == "1.0"
        if not isinstance(number, numpy.integer):
            continue
        stream = gpupool.Stream(number)
        assert (gpupool.empty(number, stream).nbytes, stream.device) == (1, 1)
        assert gpupool.memory_summary(number).devices[0].device == 1
        assert len(gpupool.memory_snapshot(device=number)["device_traces"]) > 1
        assert gpupool.plot(device=number) is not None
        assert gpupool.prometheus.text(pools=number, streams=number)
        assert _plug.index_of("device", number, "a number") == 1


@pytest.mark.parametrize("wrong", [True, False, 1.5, "1", numpy.float32(1), numpy.True_, 1e300, []])
@pytest.mark.parametrize("take", ["pools", "streams", "index", "device"])
def test_what_is_no_number_is_none_in_python_too(take, wrong):
    call = {
        "pools": lambda: gpupool.prometheus.text(pools=wrong),
        "streams": lambda: gpupool.prometheus.text(streams=wrong),
        "index": lambda: _plug.index_of("device", wrong, "a number"),
        "device": lambda: gpupool.plot(device=wrong),
    }[take]
    with pytest.raises(gpupool.Error):
        call()


def test_all_devices_have_cupy_s_limits_or_none():
    with pytest.raises(gpupool.InvalidValue):
        _cupy._limit({0: 0.5, 99: 0.5})
    assert gpupool.get_per_process_memory_fraction(0) == 1.0


@pytest.mark.parametrize("limit", [-1, NAN, "1", [], b"1"])
@pytest.mark.parametrize("name", ["size", "fraction"])
def test_what_is_no_limit_of_cupy_s(name, limit):
    with pytest.raises(gpupool.InvalidValue, match=f"memory limit {name} out of range: "):
        _cupy._part(0, **{"size": None, "fraction": None, name: limit})


# Public functions, with arguments that are wrong and what is accepted in their place.
NAMED = [
    (lambda: gpupool.empty(-1), "nbytes", "-1", "a whole number"),
    (lambda: gpupool.empty((10, 10)), "nbytes", "(10, 10)", "a whole number"),
    (lambda: gpupool.empty(1.5), "nbytes", "1.5", "a whole number"),
    (lambda: gpupool.empty(1, "fast"), "stream", "'fast'", "a stream of CuPy"),
    (lambda: gpupool.empty(1, 12345), "stream", "0x3039", "that of one that is"),
    (lambda: gpupool.empty(1, -1), "stream", "-1", "address of a stream"),
    (lambda: gpupool.stream(12345).__enter__(), "stream", "0x3039", "that of one that is"),
    (lambda: gpupool.empty_pinned(1, numa="near"), "numa", "'near'", "a NUMA node"),
    (lambda: gpupool.warm_pinned("1GiB"), "nbytes", "'1GiB'", "a whole number"),
    (lambda: gpupool.MemPool(limit="8GiB"), "limit", "'8GiB'", "a whole number"),
    (lambda: gpupool.MemPool(reserve=0.5), "reserve", "0.5", "a whole number"),
    (lambda: gpupool.MemPool(use_on_oom="yes"), "use_on_oom", "str", "bool"),
    (lambda: gpupool.MemPool(device="gpu"), "device", "gpu", "a whole number"),
    (lambda: gpupool.MemPool().sleep("disk"), "backup", "'disk'", "None"),
    (lambda: gpupool.empty(1).fill(256), "byte", "256", "0 to 255"),
    (lambda: gpupool.empty(1).fill("x"), "byte", "'x'", "0 to 255"),
    (lambda: gpupool.simulated.lease(timeout="soon"), "timeout", "'soon'", "seconds"),
    (lambda: gpupool.simulated.lease(timeout=-1), "timeout", "-1", "at least 0"),
    (lambda: gpupool.simulated.warm("all"), "count", "'all'", "a whole number"),
    (lambda: gpupool.simulated.warm(1, background="yes"), "background", "str", "bool"),
    (lambda: gpupool.HandlePool("own", "create", lambda handle: None), "create", "'create'", "a callable"),
    (lambda: gpupool.set_per_process_memory_fraction("half"), "fraction", "half", "0 to 1"),
    (lambda: gpupool.torch.begin_allocate_to_pool(0, "mine"), "pool_id", "'mine'", "a pair of numbers"),
    (lambda: gpupool.memory_snapshot("mine"), "mempool_id", "mine", "a pair of numbers"),
    (lambda: gpupool.record_memory_history(skip_actions="oom"), "skip_actions", "'oom'", "a list of names"),
    (lambda: gpupool.dump_snapshot(1), "path", "1", "the path of a file"),
    (lambda: gpupool.worker.set_up("cupy"), "settings", "'cupy'", "gpupool.worker.Settings"),
    (lambda: gpupool.ray.setup("cupy"), "settings", "'cupy'", "gpupool.worker.Settings"),
]


@pytest.mark.parametrize(("call", "argument", "value", "accepted"), NAMED)
def test_an_error_names_the_argument_its_value_and_what_is_accepted(call, argument, value, accepted):
    with pytest.raises((gpupool.Error, TypeError)) as caught:
        call()
    # A note names the argument where the interface to Python refuses a type.
    said = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert [part for part in (argument, value, accepted) if part not in said] == [], said


# The same of frameworks, where they are.
OF_FRAMEWORKS = [
    ("cuda.core", lambda: gpupool.cuda_core.MemoryResource("gpu"), "device", "'gpu'", "an ordinal"),
    ("cuda.core", lambda: gpupool.cuda_core.MemoryResource(pool="mine"), "pool", "'mine'", "a MemPool"),
    ("cuda.core", lambda: gpupool.cuda_core.PinnedMemoryResource("near"), "numa", "'near'", "a NUMA node"),
    ("cuda.core", lambda: gpupool.cuda_core.to_buffer(b"x"), "buffer", "b'x'", "a DeviceBuffer"),
    ("cuda.core", lambda: gpupool.cuda_core.from_buffer(b"x"), "buffer", "b'x'", "a cuda.core.Buffer"),
    ("rmm", lambda: gpupool.rmm.resource("gpu"), "device", "'gpu'", "a device's ordinal"),
    ("rmm", lambda: gpupool.rmm.allocator("pool"), "mr", "'pool'", "a resource of RMM"),
    ("nvmath", lambda: gpupool.nvmath.options("cudss").__enter__(), "pool", "'cudss'", "gpupool.cudss"),
    ("distributed", lambda: gpupool.dask.stats("tcp"), "client", "'tcp'", "a distributed.Client"),
    ("distributed", lambda: gpupool.dask.Plugin("cupy"), "settings", "'cupy'", "gpupool.worker.Settings"),
    # Ray is there for thorough tests alone.
    pytest.param(
        *("ray", lambda: gpupool.ray.stats("actor"), "actors", "'actor'", "a list of handles"),
        marks=pytest.mark.thorough,
    ),
]


@pytest.mark.parametrize(("framework", "call", "argument", "value", "accepted"), OF_FRAMEWORKS)
def test_an_error_of_a_frameworks_module_does_so_too(framework, call, argument, value, accepted):
    pytest.importorskip(framework)
    test_an_error_names_the_argument_its_value_and_what_is_accepted(call, argument, value, accepted)
