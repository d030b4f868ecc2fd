"""Frameworks are enabled as they are imported. Those here are small modules of a folder, and enabling is noted."""

import errno
import importlib
import importlib.util
import io
import os
import sys
import threading
import traceback
import warnings

import _gpupool_enable as hook
from errors import raised
from gpupool._run import enabling

enabled: list[str] = []
enabling.enable = enabled.append


def whole(module):
    """Return whether a module's code has run to its end."""
    return getattr(module, "IS_WHOLE", False)


def as_they_are_imported():
    hook.install(["cupy", "torch"])
    hook.install(["torch", "cuda_core"])
    assert sys.meta_path.count(hook._finder) == 1
    assert enabled == [], "a framework that was not imported is enabled"
    import other

    assert other.IS_WHOLE
    assert enabled == []
    import torch

    assert enabled == ["torch"]
    import cuda.core

    assert enabled == ["torch", "cuda_core"], "one in a namespace package"
    assert cuda.__path__
    import rmm

    assert (enabled, rmm.IS_WHOLE) == (["torch", "cuda_core"], True), "one that was not named"
    assert "cupy" not in sys.modules, "a framework was imported for it"
    assert torch.IS_WHOLE


def once_its_module_has_run():
    seen = []
    enabling.enable = lambda name: seen.append((name, whole(sys.modules["torch"])))
    hook.install(["torch"])
    import torch.part

    assert seen == [("torch", True)]
    assert torch.part.IS_WHOLE


def with_the_loader_that_they_would_have():
    spec = importlib.util.find_spec("torch")
    hook.install(["torch"])
    asked = importlib.util.find_spec("torch")
    assert (asked.name, asked.origin, asked.has_location) == (spec.name, spec.origin, True)
    assert asked.loader.get_source("torch") == spec.loader.get_source("torch")
    assert enabled == [], "a program that only looks for it has it enabled"
    import torch

    for loader in (torch.__loader__, torch.__spec__.loader):
        assert type(loader) is type(spec.loader), loader
    import inspect

    assert "IS_WHOLE" in inspect.getsource(torch)


def again_as_they_are_loaded_again():
    hook.install(["torch"])
    import torch

    torch = importlib.reload(torch)
    assert torch.IS_WHOLE
    assert set(enabled) == {"torch"}


def at_once_where_they_are_there():
    import torch

    hook.install(["torch", "cupy"])
    hook.install(["torch"])
    assert enabled == ["torch"]
    assert torch.IS_WHOLE


def when_a_lazy_one_is_loaded():
    hook.install(["torch"])
    spec = importlib.util.find_spec("torch")
    loader = importlib.util.LazyLoader(spec.loader)
    spec.loader = loader
    torch = importlib.util.module_from_spec(spec)
    sys.modules["torch"] = torch
    loader.exec_module(torch)
    assert enabled == []
    assert torch.IS_WHOLE
    assert enabled == ["torch"]


def before_any_thread_has_it():
    hook.install(["torch"])
    together, found = threading.Barrier(8), []

    def work():
        together.wait()
        import torch

        found.append((list(enabled), torch.IS_WHOLE))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(["torch"], True)] * 8


def not_where_the_import_fails():
    hook.install(["cupy"])
    for _ in range(2):
        error = raised(ValueError, importlib.import_module, "cupy")
        assert str(error) == "not today"
        assert traceback.extract_tb(error.__traceback__)[-1].filename.endswith("cupy.py")
    assert "cupy" not in sys.modules
    assert enabled == []


def by_the_other_finders():
    """Another hook, before or after ours, has its part too, and may ask ours in turn, as Numba's does."""
    for place in (0, len(sys.meta_path)):
        calls = []

        class Other:
            def find_spec(self, name, path=None, target=None, calls=calls):
                calls.append(name)
                for finder in sys.meta_path:
                    if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                        return spec

        other = Other()
        hook.install(["torch"])
        sys.meta_path.insert(place, other)
        import torch

        assert "torch" in calls
        assert torch.IS_WHOLE
        assert enabled == ["torch"]
        del sys.modules["torch"]
        enabled.clear()
        sys.meta_path.remove(other)


def with_one_warning_where_it_fails():
    def fail(name):
        raise RuntimeError("no allocator here: install one")

    enabling.enable = fail
    hook.install(["torch"])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        import torch
    assert torch.IS_WHOLE
    (said,) = [str(one.message) for one in told]
    assert said == (
        "torch stays on its own memory, for gpupool could not be enabled: RuntimeError: no allocator here: install one"
    )
    assert hook.failed == {"torch"}
    # Where warnings are errors too, the program goes on.
    warnings.simplefilter("error")
    importlib.reload(torch)


def with_no_error_where_standard_error_is_gone():
    class Full:
        def write(self, text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    own, closed = sys.stderr, io.StringIO()
    closed.close()
    for action in ("always", "error"):
        warnings.simplefilter(action)
        for sys.stderr in (closed, Full(), None):
            hook.warn("torch stays on its own memory")
    sys.stderr = own


def by_names_with_commas():
    assert hook.parse(" torch, ,cuda_core,") == ({"torch", "cuda_core"}, [])
    assert hook.parse("all") == (set(hook.FRAMEWORKS.values()), [])
    assert hook.parse("Torch,nvmath,rmm") == ({"rmm"}, ["Torch", "nvmath"])


if __name__ == "__main__":
    globals()[sys.argv[1]]()
