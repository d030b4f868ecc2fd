"""All-reduces between two GPUs, on memory that is registered with NCCL when it is allocated.

    python examples/nccl_registered_pool.py [--mib 256] [--windows]

If the machine supports it, NCCL sends registered memory directly, without copying it through its own buffers. The
segments of a pool with `no_split` are never moved, and `on_segment` reports each of them before it is used, to register
it (`ncclCommRegister`, or with --windows `ncclCommWindowRegister`), and before it is released, to deregister it. Each
GPU has its own process. This needs two GPUs, PyTorch and the NCCL that comes with it.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import importlib.util
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import gpupool

MIB = 1 << 20
RANKS = 2
# Seconds after which a process that waits for the other gives up and says where it is.
PATIENCE = 50
FLOAT32, SUM = 7, 0
SYMMETRIC = 1


class UniqueId(ctypes.Structure):
    """What the processes of one communicator share: `ncclUniqueId`."""

    _fields_ = (("bytes", ctypes.c_byte * 128),)


def find_nccl() -> str:
    """Return the file of NCCL: in its wheel, else where the system finds it."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        spec = None
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder) / "lib" / "libnccl.so.2"
        if path.exists():
            return str(path)
    return "libnccl.so.2"


class Nccl:
    """A communicator of NCCL's: this process's end of it."""

    def __init__(self, rank: int, unique_id: bytes | None = None) -> None:
        self._library = ctypes.CDLL(find_nccl())
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        self._communicator = ctypes.c_void_p()
        self.rank = rank
        number = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        self.version = number.value // 10000, number.value // 100 % 100, number.value % 100
        self.unique_id = UniqueId()
        if unique_id is None:
            self.call("ncclGetUniqueId", ctypes.byref(self.unique_id))
        else:
            ctypes.memmove(ctypes.byref(self.unique_id), unique_id, len(unique_id))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library, which must succeed."""
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed: {self._library.ncclGetErrorString(status).decode()} ({status})")

    def connect(self) -> None:
        """Meet the other processes."""
        self.call("ncclCommInitRank", ctypes.byref(self._communicator), RANKS, self.unique_id, self.rank)

    def register(self, address: int, nbytes: int, windows: bool = False) -> ctypes.c_void_p:
        """Register memory, and return the handle of that. Windows are registered by all processes, in one order."""
        handle = ctypes.c_void_p()
        memory = self._communicator, ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.byref(handle)
        if windows:
            self.call("ncclCommWindowRegister", *memory, SYMMETRIC)
        else:
            self.call("ncclCommRegister", *memory)
        return handle

    def deregister(self, handle: ctypes.c_void_p, windows: bool = False) -> None:
        """End a registration."""
        self.call("ncclCommWindowDeregister" if windows else "ncclCommDeregister", self._communicator, handle)

    def all_reduce(self, address: int, count: int, stream: int) -> None:
        """Add the numbers of all processes, in place."""
        place = ctypes.c_void_p(address)
        self.call(
            "ncclAllReduce", place, place, ctypes.c_size_t(count), FLOAT32, SUM, self._communicator,
            ctypes.c_void_p(stream),
        )  # fmt: skip

    def close(self) -> None:
        """End the communicator."""
        self.call("ncclCommDestroy", self._communicator)


class RegisteredPool:
    """A pool of gpupool's whose segments are registered with a communicator for as long as they are there."""

    def __init__(self, nccl: Nccl, windows: bool = False) -> None:
        self._nccl, self._windows = nccl, windows
        self._handles: dict[int, ctypes.c_void_p] = {}
        self.pool = gpupool.MemPool(no_split=True)
        self._callback = self.pool.on_segment(self._follow)

    def _follow(self, event: gpupool.typing.SegmentEvent) -> None:
        if event.kind == "added":
            self._handles[event.address] = self._nccl.register(event.address, event.nbytes, self._windows)
        else:
            self._nccl.deregister(self._handles.pop(event.address), self._windows)

    def __len__(self) -> int:
        """Return how many segments are registered."""
        return len(self._handles)

    def close(self) -> None:
        """Return what is free, which is deregistered before, and follow no more."""
        self.pool.trim()
        self._callback.remove()


def connect(rank: int, ends: Any) -> Nccl:
    """Return this process's end of a communicator, whose id the first process has made."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    # Before NCCL starts: multicast is not to be had on every machine, and changes what is compared.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    import torch

    torch.cuda.set_device(rank)
    torch.ones(1, device="cuda")
    if rank == 0:
        nccl = Nccl(rank)
        ends[0].send(bytes(nccl.unique_id.bytes))
    else:
        if not ends[1].poll(PATIENCE):
            raise TimeoutError("the first process made no id of a communicator")
        nccl = Nccl(rank, ends[1].recv())
    nccl.connect()
    return nccl


def work(rank: int, ends: Any, mib: int, windows: bool) -> None:
    """Be one of the processes."""
    nccl = connect(rank, ends)
    import torch

    stream = torch.cuda.Stream()
    registered = RegisteredPool(nccl, windows)
    with torch.cuda.stream(stream):
        buffer = registered.pool.empty(mib * MIB, stream.cuda_stream)
        numbers = torch.from_dlpack(buffer).view(torch.float32)
        assert len(registered) == 1, "the segment was not registered before its use"
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for step in range(10):
            numbers.fill_(rank + step)
            started.record()
            nccl.all_reduce(buffer.ptr, numbers.numel(), stream.cuda_stream)
            ended.record()
            wrong = int((numbers != sum(other + step for other in range(RANKS))).sum())
            assert not wrong, f"{wrong} numbers are wrong"
    stream.synchronize()
    if rank == 0:
        version = ".".join(map(str, nccl.version))
        print(
            f"NCCL {version}: {mib} MiB of {RANKS} GPUs added in {started.elapsed_time(ended):.3f} ms, 0 wrong numbers"
        )
    del numbers, buffer
    registered.close()
    assert not len(registered), "a segment went and is still registered"
    if rank == 0:
        print("every segment was registered before its use, and deregistered before it went")
    nccl.close()
    faulthandler.cancel_dump_traceback_later()


def run(target: Any, *arguments: Any) -> int:
    """Run a function in a process for each GPU, and return 0 if all end well."""
    context = multiprocessing.get_context("spawn")
    ends = context.Pipe()
    # A pipe's first end receives what is sent to its second, and the other way round.
    processes = [context.Process(target=target, args=(rank, ends, *arguments)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE + 5)
    late = [process for process in processes if process.is_alive()]
    for process in late:
        process.kill()
        process.join()
    codes = [process.exitcode for process in processes]
    if late or any(codes):
        print(f"the processes ended with {codes}", file=sys.stderr)
        return 1
    return 0


def reason_to_skip() -> str | None:
    """Return why this machine cannot run the example, if it cannot."""
    try:
        if gpupool.runtime() != "cuda":
            return f"needs {RANKS} NVIDIA GPUs; the runtime here is {gpupool.runtime()}"
    except gpupool.RuntimeUnavailable as error:
        return str(error)
    if gpupool.device_count() < RANKS:
        return f"needs {RANKS} GPUs; this machine has {gpupool.device_count()}"
    if importlib.util.find_spec("torch") is None:
        return "needs PyTorch: pip install torch"
    try:
        ctypes.CDLL(find_nccl())
    except OSError as error:
        return f"needs NCCL, which comes with PyTorch: {error}"
    return None


def main() -> int:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="what is added, in MiB")
    parser.add_argument("--windows", action="store_true", help="register windows, which NCCL 2.27 and later have")
    arguments = parser.parse_args()
    reason = reason_to_skip()
    if reason:
        print(f"skipped: {reason}")
        return 0
    return run(work, arguments.mib, arguments.windows)


if __name__ == "__main__":
    sys.exit(main())
