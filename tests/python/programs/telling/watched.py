"""What gpupool tells of a process that is watched, in which others take device memory: on the double of the driver.

The folder HOLDERS has libraries that do so.
"""

import ctypes
import os
import re
import sys
import types
from pathlib import Path

import gpupool
from errors import assert_says, raised

MIB = 1 << 20


def library(name):
    """Return a library that takes device memory, on the thread's device, which is device 0."""
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    library = ctypes.CDLL(os.path.join(os.environ["HOLDERS"], name))
    library.hold.restype, library.hold.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
    library.let_go.argtypes = [ctypes.c_size_t]
    return library


def hold(name, mib):
    """Have a library take so much, and return where that is."""
    address = library(name).hold(mib * MIB)
    assert address, f"{name} gets no memory"
    return address


def summary():
    (device,) = gpupool.memory_summary(0).devices
    return device


def rows():
    """Return the lines of the table, without the spaces that align the columns."""
    return [" ".join(line.split()) for line in str(summary()).split("\n\n")[0].splitlines()]


def row(name):
    found = [line.removeprefix(f"{name} ") for line in rows() if line.startswith(f"{name} ")]
    assert len(found) == 1, f"the table has {len(found)} rows of {name}: {rows()}"
    return found[0]


def each_who_holds_memory_is_told():
    buffer = gpupool.empty(20 * MIB)
    before = summary()
    assert before.is_watched, "the process is not watched"
    assert before.holders == (), f"somebody holds memory at the start: {before.holders}"
    first = hold("libnccl.so.2", 30)
    hold("libnccl.so.2", 6)
    hold("own.so", 5)
    library("libnccl.so.2").let_go(first)
    after = summary()
    folder = Path(os.environ["HOLDERS"])
    told = [(each.name, Path(each.path), each.nbytes, each.peak_bytes, each.allocations) for each in after.holders]
    expected = [
        ("NCCL", folder / "libnccl.so.2", 6 * MIB, 36 * MIB, 1),
        ("own.so", folder / "own.so", 5 * MIB, 5 * MIB, 1),
    ]
    assert told == expected, f"holders are {told}"
    assert after.other_bytes == before.other_bytes, f"they count as others too: {after}"
    assert after.to_dict()["holders"][0]["name"] == "NCCL", f"plain values have {after.to_dict()['holders']}"
    assert row("NCCL") == "6.00 MiB 36.0 MiB 1 allocation, libnccl.so.2", row("NCCL")
    assert row("own.so") == "5.00 MiB 5.00 MiB 1 allocation", row("own.so")
    html = gpupool.memory_summary(0)._repr_html_()
    assert "other libraries 11.0 MiB" in html, f"a notebook shows {html}"
    assert buffer.nbytes == 20 * MIB


def who_holds_nothing_any_more_has_no_row():
    library("libnccl.so.2").let_go(hold("libnccl.so.2", 30))
    assert [each.nbytes for each in summary().holders] == [0], f"holders are {summary().holders}"
    assert not any(line.startswith("NCCL") for line in rows()), f"the table has {rows()}"


def a_name_is_on_one_line():
    hold("a\nb\x1b[31m.so", 5)
    assert row(r"a\nb\x1b[31m.so"), rows()


def a_frameworks_memory_is_told_once():
    hold("libc10_cuda.so", 40)
    cuda = types.SimpleNamespace(is_initialized=lambda: True, memory_reserved=lambda device: 40 * MIB)
    sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
    assert [each.framework for each in summary().frameworks] == ["torch"], f"frameworks are {summary().frameworks}"
    assert row("PyTorch").startswith("40.0 MiB"), rows()
    assert "torch " not in "\n".join(rows()), f"the table has PyTorch twice: {rows()}"


def what_nvml_counts_tells_contexts_from_other_processes():
    buffer = gpupool.empty(20 * MIB)
    hold("libnccl.so.2", 30)
    device = summary()
    assert device.context_bytes == (100 - 30) * MIB - device.reserved_bytes, f"contexts have {device.context_bytes}"
    assert device.other_bytes == (300 - 100) * MIB, f"others have {device.other_bytes}"
    assert row("contexts, code") == "50.0 MiB", rows()
    assert row("other") == "200 MiB other processes", rows()
    assert buffer.nbytes == 20 * MIB


def without_nvml_contexts_are_among_the_others():
    hold("libnccl.so.2", 30)
    assert summary().context_bytes is None, f"contexts have {summary().context_bytes}"
    assert row("other") == "270 MiB other processes, CUDA contexts, code", rows()


def what_nobody_watches_says_how_to():
    device = summary()
    assert device.is_watched is False, "the process is watched"
    assert (device.holders, device.context_bytes) == ((), None), f"who holds memory is told: {device}"
    expected = "300 MiB other processes, CUDA contexts, other allocators; gpupool run --watch tells whose"
    assert row("other") == expected, rows()
    assert gpupool.memory_snapshot()["holders"] == [], "a snapshot tells who holds memory"
    gpupool.set_neighbour("server")
    assert [each.holder_bytes for each in gpupool.neighbours(0)] == [None], "a neighbour tells how much it is"


def a_series_has_one_value():
    """A library is there twice, and one is called as a state of gpupool's own memory."""
    (more := Path(os.environ["HOLDERS"], "more")).mkdir(exist_ok=True)
    (more / "libnccl.so.2").write_bytes(Path(os.environ["HOLDERS"], "libnccl.so.2").read_bytes())
    buffer = gpupool.empty(20 * MIB)
    hold("libnccl.so.2", 30)
    hold("more/libnccl.so.2", 7)
    hold("live", 5)
    text = gpupool.prometheus.text()
    found = re.findall(r'^gpupool_device_memory_bytes\{device="0",holder="(.*)"\} (\S+)$', text, re.MULTILINE)
    assert len(dict(found)) == len(found), f"a series is there twice: {found}"
    told = {name: float(value) / MIB for name, value in found}
    path = os.path.join(os.environ["HOLDERS"], "live")
    expected = {"NCCL": 37.0, path: 5.0, "live": 20.0, "contexts": 38.0, "other": 200.0}
    assert told.items() >= expected.items(), f"holders are {told}"
    assert sum(told.values()) == 300.0, f"they are not what is used: {told}"
    assert buffer.nbytes == 20 * MIB


def a_snapshot_has_holders():
    hold("libnccl.so.2", 30)
    (holder,) = gpupool.memory_snapshot()["holders"]
    path = os.path.join(os.environ["HOLDERS"], "libnccl.so.2")
    expected = {
        "device": 0,
        "name": "NCCL",
        "path": path,
        "nbytes": 30 * MIB,
        "peak_bytes": 30 * MIB,
        "allocations": 1,
    }
    assert holder == expected, f"the holder is {holder}"
    assert gpupool.memory_snapshot(device=0)["holders"] == [holder], "its device has it"
    assert gpupool.memory_snapshot(device=1)["holders"] == [], "another device has it"
    pool = gpupool.MemPool()
    assert gpupool.memory_snapshot(pool.id)["holders"] == [], "a pool has it"


def neighbours_are_told_how_much_it_is():
    gpupool.set_neighbour("server")
    hold("libnccl.so.2", 30)
    hold("own.so", 5)
    (own,) = gpupool.neighbours(0)
    assert own.holder_bytes == 35 * MIB, f"neighbours are told of {own.holder_bytes} bytes"


def info_names_holders():
    assert all(device.holders == {} for device in gpupool.info().devices), "somebody holds memory at the start"
    hold("libnccl.so.2", 30)
    hold("own.so", 5)
    info = gpupool.info()
    assert info.process.watched, "info does not say that the process is watched"
    told = [device.holders for device in info.devices]
    assert told == [{"NCCL": 30 * MIB, "own.so": 5 * MIB}, {}], f"info tells {told}"
    assert "     held by other libraries: NCCL 30.0 MiB, own.so 5.0 MiB\n" in str(info), str(info)


def an_error_names_holders():
    hold("libnccl.so.2", 100)
    error = raised(gpupool.OutOfMemory, gpupool.empty, 1 << 30)
    assert_says(error, "Held by other libraries of this process: NCCL 100.0 MiB.")
