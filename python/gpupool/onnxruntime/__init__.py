"""ONNX Runtime's device memory from gpupool: options for its CUDA provider.

>>> pool = gpupool.MemPool(limit=8 << 30)
>>> options = gpupool.onnxruntime.provider_options(pool)
>>> session = onnxruntime.InferenceSession(model, providers=[("CUDAExecutionProvider", options)])

ONNX Runtime calls C functions, with no Python on the way. It passes them no stream, so a C++ program does better with
``gpupool_onnxruntime.hpp``.

https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html#gpu_external_allocfreeempty_cache
"""

from gpupool._frameworks import plug as _plug
from gpupool._native import MemPool as _MemPool
from gpupool._native import PoolToken as _PoolToken
from gpupool._native import c_api as _c_api

__all__ = ["provider_options"]


def provider_options(pool: _MemPool | _PoolToken | None = None, *, empty_cache: bool = False) -> dict[str, str]:
    """Return options for ``CUDAExecutionProvider`` that make its device memory come from gpupool.

    Add other options to them as you like, but for ``user_compute_stream``, which ONNX Runtime refuses together with
    these. They need no ONNX Runtime to be installed. Memory that a session frees is reused once all work so far on the
    device is done, whichever stream it is on.

    Args:
        pool: Where the memory comes from, and whose device is the provider's: a MemPool, which must live as long as the
            session, or its ``token()``. By default each device's default pool, for the ``device_id`` that you give.
        empty_cache: Whether free memory goes back to the driver each time ONNX Runtime frees a session's weights, as by
            :func:`gpupool.empty_cache`, which waits for GPU work.

    Raises:
        InvalidValue: This is no pool, or it was dropped.
        Unavailable: 64 pools have such functions already.
    """
    options = {} if pool is None else {"device_id": str(_plug.device_of(pool))}
    allocate, free, release = _c_api.bare_feed(pool)
    options |= {"gpu_external_alloc": str(allocate), "gpu_external_free": str(free)}
    return {**options, "gpu_external_empty_cache": str(release)} if empty_cache else options


def __dir__() -> list[str]:
    return sorted(__all__)
