"""Trace files that fuzzing begins with."""

import pickle
from collections.abc import Iterator

from snapshots import FRAMES, ZERO, block, entry, handle, segment

HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"
MIB = 1 << 20


def logs() -> Iterator[bytes]:
    """Yield logs of RMM."""
    yield (HEADER + "1,5,allocate,0x100,3145728,0\n1,9,allocate,0x900000,7,8\n1,20,free,0x100,1,0\n").encode()
    times = ["23:59:59:000001", "23:59:59.900000", "00:00:01:5"]
    lines = [f"7,{time},allocate,{512 * place},{place + 1},0x0" for place, time in enumerate(times)]
    yield (HEADER + "\r\n".join([*lines, "7,never,deallocate,512,2,0x0", "7,,allocate failure,(nil),9,0"])).encode()
    yield b'Stream,"Size",Note,Pointer,Action\n0x0,"100","one, two",0xa,"allocate"\n0,100,,0xa,free,more\n'


def snapshots() -> Iterator[bytes]:
    """Yield snapshots of PyTorch and of gpupool."""
    history = [
        entry("free_completed", 0x1_0000, 4096, 10),
        entry("segment_alloc", 0x80_0000, 2 * MIB, 20, pool_id=(0, 1)),
        entry("alloc", 0x80_0000, 1000, 20, pool_id=(0, 1), frames=FRAMES),
        entry("alloc", 0x2_0000, 65536, 30, frames=FRAMES),
        {"action": "oom", "size": 8 << 30, "device_free": MIB, "stream": 0, "time_us": ZERO + 40, "frames": []},
        entry("free_requested", 0x2_0000, 65536, 50, pool_id=(0, 0)),
        entry("free_completed", 0x2_0000, 65536, 55, pool_id=(0, 0)),
    ]
    segments = [
        segment(0x80_0000, block(512 << 10, "active_allocated", 1000, frames=FRAMES), block(MIB), pool=(0, 1)),
        segment(0x1_0000, block(65536), block(65536, "active_pending_free", 65536), is_expandable=True),
        segment(0, block(MIB), device=1),
    ]
    handles = [
        handle(0, "cudnn", "take", 1),
        handle(60, "cudnn", "create", 2),
        handle(70, "cudnn", "give_back", 1),
        handle(80, "cudnn", "discard", 2),
        handle(95, "cublas", "create", 8, device=1),
    ]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "garbage_collection_threshold": 0.0, "last": None, "on": True}
    whole = {"segments": segments, "device_traces": [history, []], "handle_events": handles}
    for protocol in (2, 4):
        yield pickle.dumps({**whole, "allocator_settings": settings}, protocol)
    yield pickle.dumps({"segments": segments[:1], "device_traces": []}, 4)
    yield pickle.dumps(segments, 4)
    yield pickle.dumps({"segments": [], "device_traces": [[], history[2:4]]}, 3)
