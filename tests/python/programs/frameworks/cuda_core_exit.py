"""A process ends with cuda.core's buffers alive, whichever of the two packages it imported first."""

import importlib
import sys
import threading

# What lives until the interpreter lets it go.
alive = []


def main(*order):
    packages = {name: importlib.import_module(name) for name in order}
    gpupool, device = packages["gpupool"], packages["cuda.core"].Device(0)
    device.set_current()
    stream = device.create_stream(gpupool.Stream())
    gpupool.cuda_core.enable()
    alive.extend(device.allocate(1000, stream=stream) for _ in range(30))
    alive.append(gpupool.cuda_core.to_buffer(gpupool.empty(1000)))
    thread = threading.Thread(target=lambda: alive.append(device.memory_resource.allocate(10, stream=stream)))
    thread.start()
    thread.join()
    assert len(alive) == 32, "the thread allocated nothing"
    alive.extend([device, stream])


if __name__ == "__main__":
    main(*sys.argv[1:])
