"""An array that goes from process to process, each with another framework, without a copy on the way.

A CuPy process creates the first array and sends it to a PyTorch process, which sends its result to a cuda.core process,
and so on back to CuPy. They send gpupool buffers through a plain multiprocessing queue; each framework uses them by
DLPack or by address, and the receiver's stream waits for the sender's work.

Run it with: python examples/relay_between_frameworks.py [--mib 64]

It needs at least one of CuPy, PyTorch and cuda.core, and leaves out those that are not installed; if devices are
simulated (GPUPOOL_RUNTIME=host), NumPy processes take their places.
"""

import argparse
import importlib.util
import multiprocessing
import queue
import sys

import gpupool
import numpy as np

MIB = 1 << 20


def work_of_numpy(found, made):
    """Write twice what was found, and one more, in NumPy: the memory of simulated devices is the host's."""
    source, target = (np.from_dlpack(buffer).view(np.float32) for buffer in (found, made))
    target[:] = 2 * source + 1


def work_of_cupy(found, made):
    """Do so in CuPy."""
    import cupy

    source, target = (cupy.from_dlpack(buffer).view(cupy.float32) for buffer in (found, made))
    target[:] = 2 * source + 1


def work_of_torch(found, made):
    """Do so in PyTorch."""
    import torch

    source, target = (torch.from_dlpack(buffer).view(torch.float32) for buffer in (found, made))
    torch.add(1, source, alpha=2, out=target)


def work_of_cuda_core(found, made):
    """Copy what was found by cuda.core, which does not compute."""
    from cuda.core import Buffer, Device

    device = Device(found.device)
    device.set_current()
    source, target = (Buffer.from_handle(buffer.ptr, buffer.nbytes, owner=buffer) for buffer in (found, made))
    source.copy_to(target, stream=device.default_stream)


# What each framework is imported as, what it does, and whether that computes.
FRAMEWORKS = {
    "NumPy": ("numpy", work_of_numpy, True),
    "CuPy": ("cupy", work_of_cupy, True),
    "PyTorch": ("torch", work_of_torch, True),
    "cuda.core": ("cuda.core", work_of_cuda_core, False),
}


def is_installed(package):
    """Return whether a package could be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def stand(name, incoming, outgoing, is_over):
    """Take what the process before has sent, and send what becomes of it to the next one."""
    found = incoming.get()
    made = gpupool.empty(found.nbytes)
    _, work, _ = FRAMEWORKS[name]
    work(found, made)
    print(f"{name}: {found.nbytes / MIB:.0f} MiB read and sent on", flush=True)
    outgoing.put(made)
    # A process that ends takes back what was not received yet.
    is_over.wait()


def received(incoming, processes):
    """Return what the last process sends; none if one of them fails."""
    while not any(process.exitcode for process in processes):
        try:
            return incoming.get(timeout=1)
        except queue.Empty:
            pass
    return None


def stations():
    """Return the frameworks of the relay in order, some of them twice."""
    if gpupool.runtime() == "host":
        return ["NumPy", "NumPy", "NumPy"]
    there = [name for name, (package, _, _) in FRAMEWORKS.items() if name != "NumPy" and is_installed(package)]
    for name in [*FRAMEWORKS][1:]:
        if name not in there:
            print(f"without {name}, which is not installed")
    # Each way between any two that are neighbours.
    return [*there, *reversed(there)]


def main():
    """Run the relay, and check what comes of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=64)
    arguments = parser.parse_args()
    try:
        names = stations()
    except gpupool.RuntimeUnavailable as error:
        print(f"nothing is relayed: {error}")
        return 0
    if not names:
        print("nothing is relayed: install CuPy, PyTorch or cuda.core")
        return 0
    context = multiprocessing.get_context("spawn")
    queues, is_over = [context.Queue() for _ in range(len(names) + 1)], context.Event()
    processes = [
        context.Process(target=stand, args=(name, queues[place], queues[place + 1], is_over))
        for place, name in enumerate(names)
    ]
    for process in processes:
        process.start()
    expected = np.arange(arguments.mib * MIB // 4, dtype=np.float32) % 1000
    first = gpupool.empty(expected.nbytes)
    first.copy_from(expected)
    queues[0].put(first)
    last = received(queues[-1], processes)
    is_over.set()
    if last is None:
        for process in processes:
            process.terminate()
        print("a process failed")
        return 1
    found = np.frombuffer(bytes(last), np.float32)
    for process in processes:
        process.join()
    for name in names:
        if FRAMEWORKS[name][2]:
            expected = 2 * expected + 1
    if not np.array_equal(found, expected):
        print("what came back differs")
        return 1
    print(f"{' -> '.join(names)}: every number is right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
