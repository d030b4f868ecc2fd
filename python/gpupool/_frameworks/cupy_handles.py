"""CuPy's library handles from gpupool: the create and destroy functions of CuPy's bindings lease and give back.

CuPy calls `create` when a thread first needs a handle on a device, with that device current, and `destroy` when the
thread ends. A lease fits that: no other code has the handle until it is given back, in any thread.
"""

import ctypes
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from gpupool._native import HandlePool, Lease, LibraryNotFound, cublas, cusolver, cusparse

# The pools, each with a function by whose address the copies of a library are told apart: a handle of one copy means
# nothing to another.
_LIBRARIES: dict[str, tuple[HandlePool, str]] = {
    "cublas": (cublas, "cublasCreate_v2"),
    "cusolver": (cusolver, "cusolverDnCreate"),
    "cusparse": (cusparse, "cusparseCreate"),
}


class _Replaced(NamedTuple):
    module: Any
    create: Callable[[], int]
    destroy: Callable[[int], None]


_replaced: list[_Replaced] = []


def _address(path: str, function: str) -> int | None:
    """Return the address of a function that a shared object, or one that it needs, defines."""
    return ctypes.cast(getattr(ctypes.CDLL(path), function), ctypes.c_void_p).value


def _bindings(name: str) -> Any:
    """Return CuPy's bindings of a library, once gpupool uses the copy that they brought into the process."""
    pool, function = _LIBRARIES[name]
    try:
        module = importlib.import_module(f"cupy_backends.cuda.libs.{name}")
    except ImportError as error:
        raise LibraryNotFound(f"CuPy's bindings of {name} cannot be imported: {error}") from error
    ours, theirs = str(pool.path), str(module.__file__)
    if _address(ours, function) != _address(theirs, function):
        raise LibraryNotFound(f"gpupool uses {ours} and CuPy another copy of {name}; set GPUPOOL_{name.upper()}_PATH")
    return module


def _lending(pool: HandlePool, destroy_own: Callable[[int], None]) -> tuple[Callable[[], int], Callable[[int], None]]:
    """Return `create` and `destroy` functions over the pool.

    Handles that are not the pool's are left to the former `destroy`.
    """
    leases: dict[int, Lease] = {}

    def create() -> int:
        lease = pool.lease()
        handle = int(lease)
        leases[handle] = lease
        return handle

    def destroy(handle: int) -> None:
        lease = leases.pop(handle, None)
        if lease is None:
            destroy_own(handle)
        else:
            lease.release()

    return create, destroy


def lend() -> None:
    """Replace the functions of all libraries, or of none; a second call does nothing."""
    if _replaced:
        return
    modules = {name: _bindings(name) for name in _LIBRARIES}
    for name, module in modules.items():
        _replaced.append(_Replaced(module, module.create, module.destroy))
        module.create, module.destroy = _lending(_LIBRARIES[name][0], module.destroy)


def take_back() -> None:
    """Set the functions back. The handles that are lent keep gpupool's functions."""
    while _replaced:
        former = _replaced.pop()
        former.module.create, former.module.destroy = former.create, former.destroy
