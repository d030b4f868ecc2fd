"""Calls PyTorch's own CUDA allocator and gpupool in its place, in one process.

A program's functions are of two kinds. `compare_...` is a function of an allocator: what it returns must be the same
for both. `check_...` is of gpupool alone. Arguments: the library of calls, gpupool's allocator for PyTorch, and the
name of a function.
"""

import ctypes
import json
import os
import sys

import gpupool

MIB = 1 << 20
NATIVE, OURS = 0, 1
NEVER, STATE, ALLOC, ALL = range(4)
NO_POOL = (0, 0)
POOL = (0, 1)
GRAPHS = (1, 0)
FREES = "free_requested", "free_completed"

calls = ctypes.CDLL(sys.argv[1])
library = ctypes.CDLL(sys.argv[2])


class Failed(Exception):
    """What PyTorch threw."""

    def __init__(self, kind, text):
        super().__init__(kind, text)
        self.kind, self.text = kind, text


def call(name, *arguments):
    function = calls[name]
    function.restype = ctypes.c_char_p
    converted = []
    for argument in arguments:
        if isinstance(argument, float):
            converted.append(ctypes.c_double(argument))
        elif isinstance(argument, str):
            converted.append(ctypes.c_char_p(argument.encode()))
        else:
            converted.append(ctypes.c_ulonglong(argument))
    # PyTorch writes the numbers of devices as letters.
    answer = json.loads(function(*converted).decode(errors="replace"), strict=False)
    if "error" in answer:
        raise Failed(answer["error"], answer["text"])
    return answer["is"]


VERSION = tuple(int(part) for part in call("version").split(".")[:2])


class Allocator:
    """One of the two."""

    def __init__(self, which):
        self.which = which

    def __getattr__(self, name):
        return lambda *arguments: call(name, self.which, *arguments)

    def kind_of_error(self, name, *arguments):
        try:
            getattr(self, name)(*arguments)
        except Failed as error:
            return error.kind
        return None

    def text_of_error(self, name, *arguments):
        try:
            getattr(self, name)(*arguments)
        except Failed as error:
            return error.text
        return ""

    def block(self, nbytes):
        return self.allocate(nbytes)["block"]

    def blocks(self, *sizes):
        return [self.block(size) for size in sizes]

    def record(self, when=ALL, most=1000, skipped="", clear=True):
        self.record_history(1, 1, most, when, clear, skipped)

    def events(self, *keys, actions=("alloc", *FREES), device=0):
        """Return what was recorded of a device's blocks: of each event, the action and these keys."""
        traces = self.snapshot(0, 0, 1)["traces"]
        trace = traces[device] if device < len(traces) else []
        return [[event["action"], *(event[key] for key in keys)] for event in trace if event["action"] in actions]


def drop(*blocks):
    for block in blocks:
        call("drop", block)


def set_pending(is_pending):
    """Let no event of any stream be done, or all."""
    os.environ["FAKE_FAIL"] = "cuEventQuery=600" if is_pending else ""


COUNTS = "allocation", "active", "requested_bytes"


def counted(allocator, device=0):
    stats = allocator.device_stats(device)
    for kind in ("all", "small", "large"):
        allocated, requested, active = (
            stats[name][kind] for name in ("allocated_bytes", "requested_bytes", "active_bytes")
        )
        assert requested["current"] <= active["current"]
        assert allocated["current"] <= active["current"]
        assert allocated["allocated"] - allocated["freed"] <= allocated["current"]
        for name, array in stats.items():
            if isinstance(array, dict) and kind in array:
                stat = array[kind]
                assert 0 <= stat["current"] <= stat["peak"], (name, kind, stat)
    assert stats["active_bytes"]["all"]["current"] <= stats["reserved_bytes"]["all"]["current"]
    for name, array in stats.items():
        # Of free blocks, gpupool counts those that it finds.
        if isinstance(array, dict) and "small" in array and not name.startswith("inactive"):
            # What is reserved for small blocks turns into memory for large ones, and back.
            for key in ("current",) if name == "reserved_bytes" else ("current", "allocated", "freed"):
                assert array["all"][key] == array["small"][key] + array["large"][key], (name, key, array)
    return {name: stats[name] for name in COUNTS}


def live(allocator, *ids):
    info = allocator.snapshot(*(ids or (NO_POOL,))[0], 0)
    found = []
    for segment in info["segments"]:
        assert segment["bytes"] == sum(block["bytes"] for block in segment["blocks"])
        for total, key, state in (("allocated", "bytes", "allocated"), ("active", "bytes", "active")):
            assert segment[total] == sum(block[key] for block in segment["blocks"] if block[state])
        assert segment["requested"] == sum(block["requested"] for block in segment["blocks"] if block["active"])
        assert (segment["registration_counter"] >= 0) != segment["is_expandable"]
        for block in segment["blocks"]:
            assert block["active"] or not block["context"]
            if block["active"]:
                found.append((segment["device"], segment["stream"], block["requested"], *segment["pool"]))
    return sorted(found), info["settings"]


def table():
    point = ctypes.pythonapi.PyCapsule_GetPointer
    point.restype, point.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_void_p(point(gpupool.c_api.capsule, b"gpupool.c_api"))


def install():
    library.gpupool_torch_install.restype = ctypes.c_char_p
    return library.gpupool_torch_install(table())


def install_pinned():
    cpu = ctypes.CDLL("libtorch_cpu.so", mode=os.RTLD_NOLOAD)
    get, set_ = (
        ctypes.cast(cpu[f"_ZN2at16{name}HostAllocatorEN3c1010DeviceTypeE{rest}"], ctypes.c_void_p)
        for name, rest in (("get", ""), ("set", "PNS_13HostAllocatorEh"))
    )
    library.gpupool_torch_install_pinned.restype = ctypes.c_char_p
    return library.gpupool_torch_install_pinned(table(), get, set_)


def uninstall_pinned():
    library.gpupool_torch_uninstall_pinned.restype = ctypes.c_char_p
    return library.gpupool_torch_uninstall_pinned()


class PoolId(ctypes.Structure):
    _fields_ = (("first", ctypes.c_uint64), ("second", ctypes.c_uint64))


def adopt(device, torch_id, own_id):
    library.gpupool_torch_adopt.restype = ctypes.c_char_p
    library.gpupool_torch_adopt.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, PoolId]
    return library.gpupool_torch_adopt(device, *torch_id, PoolId(*own_id))


def uninstall():
    library.gpupool_torch_uninstall.restype = ctypes.c_char_p
    return library.gpupool_torch_uninstall()


def main(functions, install=install):
    """Run the function that the command line names, with gpupool put in its place by `install`."""
    name = sys.argv[3]
    function = functions[name]
    native, ours = Allocator(NATIVE), Allocator(OURS)
    native.set_up(2)
    if name.startswith("compare"):
        expected = json.loads(json.dumps(function(native)))
        call("drop_all")
        for pool in (POOL, (0, 2), GRAPHS):
            while native.kind_of_error("pool_use_count", 0, *pool) is None and native.pool_use_count(0, *pool):
                native.release_pool(0, *pool)
        native.record_history(0, 0, 1, NEVER, 1, "")
        native.empty_cache(*NO_POOL)
        for device in (0, 1):
            native.reset_accumulated_stats(device)
            native.reset_peak_stats(device)
        call("take_noted")
        assert (said := install()) is None, said
        got = json.loads(json.dumps(function(ours)))
        assert got == expected, f"\nPyTorch: {expected}\ngpupool: {got}"
    else:
        assert (said := install()) is None, said
        function(ours)
