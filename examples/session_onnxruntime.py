"""A session of ONNX Runtime on its CUDA provider, whose device memory comes from a MemPool with a limit.

The model is one that ONNX Runtime's package contains. Where there is no CUDA provider, the functions that it would be
given are called as it calls them, which works on simulated devices, too.

Run it with: python examples/session_onnxruntime.py
For the session it needs onnxruntime-gpu (pip install onnxruntime-gpu) and NumPy.
"""

import ctypes
import gc
import importlib.util

import gpupool


def run_session(pool):
    """Run the model on the GPU, compare its result, and print what the session took from the pool."""
    import numpy as np
    import onnxruntime
    from onnxruntime.datasets import get_example

    options = gpupool.onnxruntime.provider_options(pool)
    session = onnxruntime.InferenceSession(
        get_example("sigmoid.onnx"), providers=[("CUDAExecutionProvider", options), "CPUExecutionProvider"]
    )
    x = np.random.default_rng(0).standard_normal((3, 4, 5), dtype=np.float32)
    [y] = session.run(None, {"x": x})
    error = float(abs(y - 1 / (1 + np.exp(-x))).max())
    assert error < 1e-5, f"the result differs by {error:.1e}"
    assert pool.stats().allocations > 0, "the session took no memory from the pool"
    print(f"largest error     {error:.1e}")


def call_functions(pool):
    """Allocate and free as the provider does, and print what that takes from the pool."""
    options = gpupool.onnxruntime.provider_options(pool)
    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(int(options["gpu_external_alloc"]))
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(int(options["gpu_external_free"]))
    blocks = [allocate(nbytes) for nbytes in (1 << 20, 3 << 20, 100)]
    print(f"in use            {pool.stats().live_blocks} blocks, {pool.stats().live_bytes >> 20} MiB")
    assert allocate(pool.limit + 1) is None, "the limit was exceeded"
    for block in blocks:
        free(block)


def main():
    """Run the session, or its provider's functions alone."""
    pool = gpupool.MemPool(limit=1 << 30)
    providers = []
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        providers = onnxruntime.get_available_providers()
    if "CUDAExecutionProvider" in providers and gpupool.runtime() == "cuda":
        run_session(pool)
    else:
        print("There is no CUDA provider of ONNX Runtime here; get it with: pip install onnxruntime-gpu")
        call_functions(pool)
    gc.collect()
    # What was freed waits for all work so far, and is settled here.
    pool.trim()
    print(f"allocated         {pool.stats().allocations} blocks")
    print(f"still in use      {pool.stats().live_blocks} blocks")


if __name__ == "__main__":
    main()
