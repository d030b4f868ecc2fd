"""``help`` shows the modules for frameworks, and ``hasattr`` asks them, where no framework is installed."""

import pydoc
import sys

for framework in (
    *("torch", "cupy", "numba", "numba_cuda", "cuda", "cuda.core", "rmm", "warp", "nvmath", "onnxruntime"),
    *("distributed", "ray"),
):
    # What stands here cannot be imported.
    sys.modules[framework] = None

import gpupool  # noqa: E402
from errors import assert_says, raised  # noqa: E402

for name in ("torch", "cupy", "numba", "cuda_core", "rmm", "warp", "nvmath", "onnxruntime", "dask", "ray"):
    module = getattr(gpupool, name)
    text = pydoc.plain(pydoc.render_doc(module))
    assert_says(text, f"gpupool.{name}", "FUNCTIONS", module.__doc__.splitlines()[0])

for module, name in ((gpupool.cuda_core, "MemoryResource"), (gpupool.dask, "Plugin")):
    assert not hasattr(module, name), f"{name} is there without its framework"
    error = raised(gpupool.LibraryNotFound, lambda module=module, name=name: getattr(module, name))
    assert_says(error, "cannot be imported", "pip install")
