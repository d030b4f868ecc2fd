"""What is imported, loaded and chosen by `import gpupool` and by a first look at one of its modules: nothing more."""

import contextlib
import io
import operator
import re
import sys
from pathlib import Path

import gpupool
from gpupool.__main__ import main


def these_modules(touched, *names):
    """Look at these of gpupool's names, separated by commas, which imports none of these modules."""
    for name in touched.split(","):
        if name:
            operator.attrgetter(name)(gpupool)
    imported = set(names) & sys.modules.keys()
    assert not imported, f"gpupool imports {imported}"


def pytorch():
    """Take leave of it, which does not import it either."""
    gpupool.torch.disable()
    assert "torch" not in sys.modules, "gpupool.torch imports torch"


def distributed():
    """See that gpupool.dask has a class that is derived from one of it."""
    assert "Plugin" in gpupool.dask.__all__, "gpupool.dask has no Plugin"
    assert "distributed" not in sys.modules, "gpupool.dask imports distributed"


def ray():
    """Have gpupool.ray make a hook for it."""
    assert callable(gpupool.ray.setup()), "gpupool.ray makes no hook"
    assert "ray" not in sys.modules, "gpupool.ray imports ray"


def gpu_libraries():
    """Ask a pool for its name and its numbers."""
    assert gpupool.cudnn.name == "cudnn", "the pool has another name"
    assert gpupool.cudnn.stats().created == 0, "the pool has handles"
    maps = Path("/proc/self/maps").read_text()
    loaded = re.findall(
        r"lib(?:cuda|cudnn|cublas|cublasLt|cusparse|cusolver|cudss|amdhip64|MIOpen|hip(?:blas|blaslt|solver|sparse))\.so",
        maps,
    )
    assert not loaded, f"gpupool loads {set(loaded)}"


def other_commands():
    """Ask commands for their help, each of which imports what it takes and not what others do."""
    for command in ("info", "demo", "run", "top"):
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            main([command, "--help"])
        imported = {
            "gpupool._cli.plot",
            "gpupool._cli.replay",
            "gpupool._plot",
            "gpupool._traces.trace",
        } & sys.modules.keys()
        assert not imported, f"{command} imports {imported}"
        assert command == "top" or "gpupool._cli.top" not in sys.modules, f"{command} imports that of top"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
