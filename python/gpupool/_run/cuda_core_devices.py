"""gpupool as the memory resource of every cuda.core device that has none yet, on every thread.

cuda.core gives each thread device objects of its own, which make their resource when it is first asked for. This takes
the place of that, so that no thread needs to call ``gpupool.cuda_core.enable()``, and no driver is started.
"""

import threading
from typing import Any

import _gpupool_enable

from gpupool import cuda_core
from gpupool._native import Error

_lock = threading.Lock()
_is_installed = False


def install() -> None:
    """Let devices begin with gpupool's resource; a second call does nothing.

    Raises:
        gpupool.Error: This version of cuda.core has no such place.
        gpupool.LibraryNotFound: cuda.core is missing or too old.
    """
    global _is_installed
    core: Any = cuda_core._core()
    kind = core.Device
    own = vars(kind).get("memory_resource")
    if not isinstance(own, property) or own.fget is None or "_memory_resource" not in vars(kind):
        raise Error(
            f"cuda.core {core.__version__} keeps its devices' memory resources elsewhere: call "
            "gpupool.cuda_core.enable() in each thread"
        )
    get = own.fget

    def memory_resource(device: Any) -> Any:
        """Return the device's memory resource, at first gpupool's."""
        if device._memory_resource is None:
            try:
                cuda_core.enable(device)
            except Exception as error:
                _gpupool_enable.warn(f"{device} keeps cuda.core's own memory: {type(error).__name__}: {error}")
        return get(device)

    with _lock:
        if not _is_installed:
            kind.memory_resource = property(memory_resource, own.fset, own.fdel, own.__doc__)
            _is_installed = True
