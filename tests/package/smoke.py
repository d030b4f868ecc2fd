"""The first steps with an installed gpupool, on simulated devices: a handle, a lease, an allocation, a command.

Usage: smoke.py LIBRARY..., in the virtual environment that it is installed in. The libraries are those for PyTorch, RMM
and C that must have come along, and no others.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import metadata
from pathlib import Path

os.environ["GPUPOOL_RUNTIME"] = "host"
import gpupool


def use() -> None:
    """Use a handle and memory."""
    stream = gpupool.Stream()
    assert gpupool.simulated.handle(stream) == gpupool.simulated.handle(stream)
    with gpupool.simulated.lease(stream) as lease:
        assert int(lease)
    buffer = gpupool.empty(1 << 20, stream)
    assert (buffer.nbytes, buffer.ptr % 512) == (1 << 20, 0)
    pool = gpupool.MemPool(limit=1 << 25)
    with gpupool.use_mem_pool(pool):
        assert gpupool.empty(1000, stream).pool_id == pool.id


def is_whole() -> None:
    """Check that all came along: types for checkers, licences, the modules for frameworks."""
    package = Path(gpupool.__file__).parent
    assert "site-packages" in package.parts, f"{package} is not the installed one"
    sources = ("_rmm/resource.pyx", "_torch/allocator.cpp", "_torch/host_allocator.cpp")
    for name in ("py.typed", "_native.pyi", "torch.py", "worker.py", *sources):
        assert (package / name).is_file(), name
    assert (Path(gpupool.get_include()) / "gpupool.h").is_file(), gpupool.get_include()
    for name in ("_gpupool_enable.py", "gpupool_enable.pth"):
        assert (package.parent / name).is_file(), name
    for name in ("", "_callbacks", "_handles", "_mr", "_onnxruntime", "_rmm"):
        assert (Path(gpupool.get_include()) / f"gpupool{name}.hpp").is_file(), name
    for name in ("pkgconfig/gpupool.pc", "cmake/gpupool/gpupool-config.cmake"):
        assert (package / "lib" / name).is_file(), name
    libraries = sorted(path.name for folder in ("_rmm", "_torch", "lib") for path in (package / folder).glob("*.so*"))
    assert libraries == sorted(Path(path).name for path in sys.argv[1:]), libraries
    told = metadata("gpupool")
    assert told["Version"] == gpupool.__version__
    assert told.get_all("License-File") == ["LICENSE-APACHE", "LICENSE-MIT"]
    assert {"cupy12", "cupy13", "torch"} <= set(told.get_all("Provides-Extra") or [])


def is_enabled_at_start() -> None:
    """See that Python reads the file beside the package, and enables a stand-in for a framework as it is imported."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "torch.py").touch()
        done = subprocess.run(
            [sys.executable, "-c", "import torch"],
            env={**os.environ, "GPUPOOL_ENABLE": "torch", "PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=True,
        )
    assert "torch stays on its own memory" in done.stderr, done.stderr


def has_no_faults() -> None:
    """See that nothing of the tests' came along: faults on demand and the controls of the simulation."""
    controls = [name for name in dir(gpupool._native) if name.startswith("host_")]
    assert not controls, controls


# The table of the library for C, in a process without gpupool's module.
TAKES_THE_TABLE = """
import ctypes, sys
get = ctypes.CDLL(sys.argv[1]).gpupool_get_api
get.restype, get.argtypes = ctypes.POINTER(ctypes.c_uint64), [ctypes.c_uint64]
assert get(2)[0] == 2 and get(2)[1] >= 520
"""


def c_has_a_library() -> None:
    """See that the library for C loads without Python's module, if it came along."""
    if "libgpupool.so.0" in sys.argv[1:]:
        subprocess.run([sys.executable, "-c", TAKES_THE_TABLE, gpupool.get_library()], check=True)


def programs_are_watched() -> None:
    """See that a program has the library that counts who holds memory, or what says how to get it."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text("import gpupool\nassert gpupool.info().process.watched\n")
        command = [sys.executable, "-m", "gpupool", "run", "--watch", program]
        done = subprocess.run(command, capture_output=True, text=True)
    if "libgpupool_watch.so" in sys.argv[1:]:
        assert done.returncode == 0, done
    else:
        assert done.returncode == 1, done
        assert "run `make library`" in done.stderr, done


# A process that ends with a daemon thread in a callable of gpupool's, whose Rust frames Python before 3.14 unwinds.
ENDS_IN_A_CALLABLE = """
import sys, threading, gpupool
sys.setswitchinterval(1e-6)
inside = threading.Event()
def stay():
    inside.set()
    while True: pass
pool = gpupool.HandlePool("own", lambda: 1, lambda handle: None, lambda handle, stream: stay())
threading.Thread(target=pool.handle, daemon=True).start()
inside.wait()
"""


def ends_quietly() -> None:
    """See that the linker put gpupool's function before Rust's own, which aborts such a process."""
    for _ in range(5):
        subprocess.run([sys.executable, "-c", ENDS_IN_A_CALLABLE], check=True)


def commands_run() -> None:
    """Run the installed command."""
    command = Path(sysconfig.get_path("scripts")) / "gpupool"
    for arguments in (["--version"], ["info"], ["demo", "--threads", "4", "--waves", "2"], ["top", "--once"]):
        subprocess.run([command, *arguments], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        log.write_text("Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10,1024,0\n1,1,free,0x10,1024,0\n")
        subprocess.run([command, "run", "--report", "-m", "json.tool", "--help"], check=True, capture_output=True)
        # What brings nothing along has no pictures, and says which command brings them.
        done = subprocess.run([command, "plot", log], capture_output=True, text=True, cwd=folder)
        assert done.returncode == 1, done
        assert "pip install 'gpupool[plot]'" in done.stderr, done


if __name__ == "__main__":
    use()
    is_whole()
    is_enabled_at_start()
    has_no_faults()
    c_has_a_library()
    programs_are_watched()
    ends_quietly()
    commands_run()
    print(f"gpupool {gpupool.__version__} works from {Path(gpupool.__file__).parent}")
