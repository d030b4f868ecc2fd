"""What holds the memory: one answer that adds up, as a tree, as tables and as JSON."""

import ctypes
import dataclasses
import gc
import json
import shutil
import sys
import types

import gpupool
import pytest
from abi import build_driver, build_holder, build_nvml
from c_table import function
from forks import run_program as run_watched
from running import functions_of, run_program
from watched import watch_library

MIB = 1 << 20
WATCHED = "telling/watched.py"


@pytest.fixture
def check(tmp_path):
    """Run one of the programs about frameworks on the double of the CUDA driver with two devices.

    A framework's allocator on a device that is simulated does not exist.
    """
    build_driver(tmp_path)
    driver = {"GPUPOOL_RUNTIME": None, "LD_LIBRARY_PATH": str(tmp_path), "FAKE_VMM": "1", "FAKE_DEVICES": "2"}
    return lambda what: run_program("telling/summaries_of_frameworks.py", what, **driver)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Return the environment of a watched process on the double of the driver, with libraries that take memory."""
    folder = tmp_path_factory.mktemp("watched")
    build_driver(folder)
    build_nvml(folder)
    holder = build_holder(folder / "holders" / "libnccl.so.2")
    for name in ("libc10_cuda.so", "own.so", "live", "a\nb\x1b[31m.so"):
        shutil.copy(holder, holder.with_name(name))
    return {
        "GPUPOOL_RUNTIME": None,
        "LD_LIBRARY_PATH": str(folder),
        "LD_PRELOAD": str(watch_library()),
        "HOLDERS": str(folder / "holders"),
        "FAKE_VMM": "1",
        "FAKE_DEVICES": "2",
    }


@pytest.fixture(autouse=True)
def _no_handles_left():
    """Destroy other tests' idle handles, so that each handle's bytes are what was measured."""
    gc.collect()
    gpupool.simulated.trim()
    yield
    gpupool.simulated.trim()
    gpupool._native.simulate_costly_handles(0.0, MIB)


def of_device(ordinal):
    (device,) = gpupool.memory_summary(ordinal).devices
    return device


def of_pool(pool):
    (found,) = [each for each in of_device(pool.device).pools if each.id == pool.id]
    return found


def of_library(name, device=0):
    (found,) = [each for each in of_device(device).libraries if each.library == name]
    return found


def assert_adds_up(device):
    """Check that each number is the sum of its parts."""
    known = device.reserved_bytes + device.handle_bytes + device.workspace_bytes
    assert device.used_bytes == known + device.other_bytes == device.total_bytes - device.free_bytes
    for held in (device, *device.pools):
        assert held.reserved_bytes == held.live_bytes - held.asleep_bytes + held.cached_bytes + held.releasing_bytes
    for pool in device.pools:
        for part in ("live_bytes", "cached_bytes", "requested_bytes", "live_blocks"):
            assert getattr(pool, part) == sum(getattr(stream, part) for stream in pool.streams)
    assert device.live_bytes == sum(pool.live_bytes for pool in device.pools)
    assert device.handle_bytes == sum(each.device_bytes for each in device.libraries)


def test_every_part_is_in_one_answer(nothing_left):
    streams = [gpupool.Stream(), gpupool.Stream()]
    pool = gpupool.MemPool(limit=64 * MIB)
    before = of_device(0)
    with gpupool.use_mem_pool(pool):
        buffers = [gpupool.empty(3 * MIB, streams[0]), gpupool.empty(1000, streams[1])]
    with gpupool.simulated.lease(streams[0]):
        device = of_device(0)
        assert_adds_up(device)
        assert device.other_bytes == before.other_bytes
        assert device.handle_bytes == before.handle_bytes + MIB
        library = of_library("simulated")
        assert (library.leased, library.device_bytes >= MIB, library.peak_in_use >= 1) == (1, True, True)
    found = of_pool(pool)
    assert (found.name, found.limit, found.is_closed, found.live_blocks) == (str(pool.id), 64 * MIB, False, 2)
    assert (found.requested_bytes, found.live_bytes) == (3 * MIB + 1000, 3 * MIB + 1024)
    live = {stream.stream: stream.live_bytes for stream in found.streams}
    assert live == {streams[0].ptr: 3 * MIB, streams[1].ptr: 1024}
    assert found.streams[0].stream == streams[0].ptr, "the largest comes first"
    # As the pool itself says, but for the moment.
    counts = dataclasses.asdict(found)
    assert counts | pool.stats().as_dict() == counts
    del buffers


def test_the_total_is_what_memory_stats_says(nothing_left):
    buffer = gpupool.empty(5 * MIB)
    counts = dataclasses.asdict(of_device(0))
    stats = gpupool.memory_stats(0).as_dict()
    assert stats.pop("pools") == len(counts["pools"])
    assert counts | stats == counts
    buffer.free()


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(gpupool.InvalidValue, match="no device 7"):
        gpupool.memory_summary(7)
    with pytest.raises(gpupool.InvalidValue, match="whole number"):
        gpupool.memory_summary("0")


def test_it_is_plain_values_too():
    buffer = gpupool.empty(100)
    summary = gpupool.memory_summary()
    plain = summary.to_dict()
    assert json.loads(summary.to_json(indent=2)) == plain
    assert plain["devices"][0] == summary.devices[0].to_dict()
    assert plain["devices"][0]["pools"][0]["id"] == [0, 0]
    assert hash(summary) == hash(summary)
    with pytest.raises(dataclasses.FrozenInstanceError):
        summary.devices[0].live_bytes = 0
    assert isinstance(summary, gpupool.typing.MemorySummary)
    buffer.free()


def test_tables_show_it_to_people():
    lines = run_program("telling/summaries.py", "is_tables_for_people", GPUPOOL_HOST_MEMORY=str(16 << 30)).split("\n")
    assert lines[0].endswith("runtime host")
    assert max(map(len, lines)) <= 100
    # Without the spaces that align the columns.
    lines = [" ".join(line.split()) for line in lines]
    assert lines[2:12] == [
        "device 0 now peak",
        "memory pools 24.0 MiB 24.0 MiB live 23.5 MiB, cached 512 KiB",
        "library handles 1.00 MiB simulated 1.00 MiB",
        "workspaces 0 B",
        "other 0 B other processes, CUDA contexts, other allocators",
        "free 16.0 GiB",
        "total 16.0 GiB",
        "",
        "pool live cached reserved peak live peak reserved blocks limit",
        "default 1.50 MiB 512 KiB 2.00 MiB 1.50 MiB 2.00 MiB 1",
    ]
    assert lines[12:14] == [
        "stream 0 (default) 1.50 MiB 512 KiB 2.00 MiB 1",
        "(0, 1) 22.0 MiB 0 B 22.0 MiB 22.0 MiB 22.0 MiB 11 1.00 GiB",
    ]
    assert all(line.startswith("stream 0x") and line.endswith(" 2.00 MiB 0 B 2.00 MiB 1") for line in lines[14:22])
    assert lines[22:] == [
        "3 more streams 6.00 MiB 0 B 6.00 MiB 3",
        "",
        "library handles in use idle discarded peak in use memory peak workspaces",
        "simulated 1 1 0 0 1 1.00 MiB 1.00 MiB 0 B",
        "",
    ]


def test_a_driver_that_does_not_answer_leaves_the_rest(nothing_left):
    buffer = gpupool.empty(MIB)
    gpupool._native.host_inject("MemoryInfo")
    summary = gpupool.memory_summary(0)
    (device,) = summary.devices
    assert (device.free_bytes, device.used_bytes, device.total_bytes, device.other_bytes) == (None,) * 4
    assert "MemoryInfo failed with HOST_ERROR_INJECTED" in device.driver_error
    assert device.driver_error in str(summary)
    assert device.live_bytes >= MIB
    json.loads(summary.to_json())
    buffer.free()


def test_what_nobody_knows_of_is_the_others(nothing_left):
    gpupool.simulated.warm(1)
    before = of_device(0)
    # The driver does not answer as this one is made, so it is taken for one like the last: 1 MiB.
    gpupool._native.simulate_costly_handles(0.0, 6 * MIB)
    gpupool._native.host_inject("MemoryInfo")
    gpupool.simulated.warm(2)
    after = of_device(0)
    assert_adds_up(after)
    assert after.other_bytes == before.other_bytes + 5 * MIB


def test_a_pool_that_was_dropped_is_told_of_while_it_has_blocks(nothing_left):
    pool = gpupool.MemPool()
    identity = pool.id
    with gpupool.use_mem_pool(pool):
        buffer = gpupool.empty(MIB)
    del pool
    found = [each for each in of_device(0).pools if each.id == identity]
    assert [(each.is_closed, each.live_bytes) for each in found] == [(True, MIB)]
    assert f"{identity}, closed" in str(gpupool.memory_summary(0))
    buffer.free()
    assert identity not in [each.id for each in of_device(0).pools]


def test_peaks_are_reset_for_memory_and_handles_at_once(nothing_left):
    streams = [gpupool.Stream() for _ in range(3)]
    leases = [gpupool.simulated.lease(stream) for stream in streams]
    for lease in leases:
        lease.release()
    gpupool.empty(32 * MIB).free()
    gpupool.empty_cache()
    gpupool.simulated.trim()
    assert (of_library("simulated").peak_in_use >= 3, of_device(0).peak_reserved_bytes >= 32 * MIB) == (True, True)
    gpupool.reset_peak_stats(1)
    assert of_library("simulated").peak_in_use >= 3
    gpupool.reset_peak_stats(0)
    library = of_library("simulated")
    assert (library.peak_in_use, library.peak_device_bytes) == (library.held, library.device_bytes)
    assert of_device(0).peak_reserved_bytes == of_device(0).reserved_bytes


def test_peaks_are_reset_for_one_pool(nothing_left):
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        gpupool.empty(32 * MIB).free()
        default_peak = of_device(0).pools[0].peak_live_bytes
    pool.reset_peak_stats()
    assert (pool.stats().peak_live_bytes, of_device(0).pools[0].peak_live_bytes) == (0, default_peak)
    gpupool.simulated.handle()
    gpupool.simulated.reset_peak_stats(device=0)
    stats = gpupool.simulated.stats(0)
    assert (stats.peak_in_use, stats.peak_device_bytes) == (stats.held, stats.device_bytes)
    with pytest.raises(gpupool.InvalidValue, match="no device 7"):
        gpupool.simulated.reset_peak_stats(7)


@pytest.mark.parametrize(
    "what",
    [
        "those_that_are_imported_are_asked",
        "one_that_cannot_answer_keeps_nobody_else_from_it",
        "what_gpupool_feeds_pytorch_is_counted_once",
    ],
)
def test_frameworks_are_asked(check, what):
    check(what)


# What used memory there is, and what of it NVML counts for the process.
USED = {"FAKE_FREE_MIB": str(1024 - 300)}
OF_NVML = {**USED, "FAKE_PROCESS_MIB": "100"}
VARIABLES = {
    "what_nvml_counts_tells_contexts_from_other_processes": OF_NVML,
    "a_series_has_one_value": OF_NVML,
    "without_nvml_contexts_are_among_the_others": USED,
    "what_nobody_watches_says_how_to": {**USED, "LD_PRELOAD": None},
}


@pytest.mark.parametrize("what", functions_of(WATCHED))
def test_a_process_that_is_watched(what, watched):
    if what == "a_series_has_one_value":
        pytest.importorskip("prometheus_client")
    run_watched(WATCHED, what, **{**watched, **VARIABLES.get(what, {})})


@pytest.mark.parametrize(
    ("what", "variables"),
    [
        ("is_of_every_device_in_use", {}),
        # A runtime that cannot be had shows that none is asked for.
        ("of_nothing_imports_and_starts_nothing", {"GPUPOOL_RUNTIME": "nothing"}),
    ],
)
def test_the_summary_of_a_process(what, variables):
    run_program("telling/summaries.py", what, **variables)


def test_simulated_devices_have_no_memory_of_frameworks(monkeypatch):
    def fail():
        raise AssertionError("a framework was asked about a simulated device")

    cuda = types.SimpleNamespace(is_initialized=fail)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert of_device(0).frameworks == ()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="logging imports dataclasses")
def test_importing_gpupool_does_not_import_dataclasses():
    run_program("importing/leaves_alone.py", "these_modules", "", "dataclasses")


class _PoolOptions(ctypes.Structure):
    """`gpupool_pool_options` of gpupool.h."""

    _fields_ = (
        ("size", ctypes.c_uint64),
        ("for_graphs", ctypes.c_int),
        ("use_on_oom", ctypes.c_int),
        ("no_split", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("source", ctypes.c_void_p),
    )


@pytest.mark.parametrize(
    ("name", "shown"), [("PyTorch's (0, 3)", "PyTorch's (0, 3)"), ("a\nb\x1b[31m", r"a\nb\x1b[31m")]
)
def test_a_pool_that_a_framework_made_has_the_framework_s_name_beside_its_id(name, shown):
    pool = ctypes.c_void_p()
    options = _PoolOptions(size=ctypes.sizeof(_PoolOptions), name=name.encode())
    assert function("pool_create")(0, ctypes.byref(options), ctypes.byref(pool)) == 0
    try:
        (found,) = [each for each in of_device(0).pools if each.given_name is not None]
        assert (found.given_name, found.name) == (name, str(found.id))
        summary = gpupool.memory_summary(0)
        # On one line of the table.
        assert f'\n{found.id} "{shown}"  ' in str(summary)
        assert name in [each["given_name"] for each in json.loads(summary.to_json())["devices"][0]["pools"]]
    finally:
        assert function("pool_release")(pool) == 0
