"""A process ends with pinned memory everywhere: held, lent, waiting for a stream, being made and being given back."""

import threading

import gpupool
from gpupool import _native

stream = gpupool.Stream()
_native.host_submit(stream)
held = gpupool.empty_pinned(1 << 20, stream)
lent = memoryview(gpupool.empty_pinned(1 << 20))
gpupool.empty_pinned(1 << 20, stream).free()
gpupool.empty_pinned(1 << 28).free()
gpupool.empty_cache()
gpupool.warm_pinned(1 << 30, background=True)


def work() -> None:
    while True:
        gpupool.empty_pinned(1 << 16, stream)


threading.Thread(target=work, daemon=True).start()
