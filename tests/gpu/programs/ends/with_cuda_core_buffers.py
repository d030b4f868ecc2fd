"""A process ends cleanly with cuda.core's buffers alive, whichever package it imported first."""

import importlib
import sys
import threading

from waiting import wait_for

# What lives until the interpreter lets it go.
alive = []


def main(order):
    packages = {name: importlib.import_module(name) for name in order.split()}
    gpupool, device = packages["gpupool"], packages["cuda.core"].Device(0)
    device.set_current()
    gpupool.cuda_core.enable()
    stream = device.create_stream()
    alive.extend(device.allocate(100000, stream=stream) for _ in range(30))
    alive.append(gpupool.cuda_core.to_buffer(gpupool.empty(1000)))
    for buffer in alive[:5]:
        buffer.fill(1, stream=stream)

    def work(started):
        alive.append(device.memory_resource.allocate(1000, stream=stream))
        started.set()
        threading.Event().wait()

    started = threading.Event()
    threading.Thread(target=work, args=(started,), daemon=True).start()
    wait_for(started, "the thread has its buffer")
    alive.extend([device, stream])


if __name__ == "__main__":
    main(*sys.argv[1:])
