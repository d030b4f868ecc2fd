"""Frameworks that are enabled as a program imports them: by modules in their place, and by the real ones."""

import contextlib

import _gpupool_enable as hook
import pytest
from framework_machine import framework_machine
from gpupool import worker
from gpupool._compiled.cache import NoLibrary
from gpupool._run import enabling as _enabling
from pytorch.fetch import VERSIONS
from rmm_module import cache_of, compiled_module
from running import run_bare_program, start_bare_program
from torch_machine import COMPILED, TorchMachine


@pytest.fixture
def folder(tmp_path):
    """Make modules with the names of frameworks; each says at its end that it is whole."""
    whole = "IS_WHOLE = True\n"
    files = {
        "torch/__init__.py": f"import time\n\ntime.sleep(0)\n{whole}",
        "torch/part.py": whole,
        # The real one takes over the names of a module below it.
        "cuda/core/__init__.py": f"from cuda.core import below\nglobals().update(below.__dict__)\n{whole}",
        "cuda/core/below.py": whole,
        "rmm.py": whole,
        "other.py": whole,
        "cupy.py": 'raise ValueError("not today")\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "what",
    [
        "as_they_are_imported",
        "once_its_module_has_run",
        "with_the_loader_that_they_would_have",
        "again_as_they_are_loaded_again",
        "at_once_where_they_are_there",
        "when_a_lazy_one_is_loaded",
        "before_any_thread_has_it",
        "not_where_the_import_fails",
        "by_the_other_finders",
        "by_names_with_commas",
    ],
)
def test_frameworks_are_enabled(folder, what):
    run_bare_program("run/hook.py", what, PYTHONPATH=str(folder))


def test_a_framework_that_cannot_be_enabled_is_told_of_by_a_warning(folder):
    done = start_bare_program("run/hook.py", "with_one_warning_where_it_fails", PYTHONPATH=str(folder))
    assert done.returncode == 0, done.stderr
    # Where warnings are errors.
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("gpupool: torch stays on its own memory")


def test_a_warning_that_cannot_be_written_is_none():
    run_bare_program("run/hook.py", "with_no_error_where_standard_error_is_gone")


def rmm_compiled():
    """Have gpupool's module for RMM compiled once for all tests; return the variables with which it is found."""
    rmm = pytest.importorskip("rmm")
    # Where none can be compiled there is a warning, which fails the program.
    with contextlib.suppress(NoLibrary):
        compiled_module(rmm)
    return {"XDG_CACHE_HOME": str(cache_of(rmm))}


@pytest.mark.parametrize(
    ("name", "what"),
    [("numba_cuda", "numba"), ("cuda.core", "cuda_core"), ("rmm", "rmm"), ("cupy", "cupy")],
)
def test_real_frameworks_are_enabled_without_a_start_of_the_driver(tmp_path, name, what):
    pytest.importorskip(name)
    caches = rmm_compiled() if what == "rmm" else {}
    framework_machine(tmp_path)("run/frameworks.py", f"of_{what}", CUDA_VISIBLE_DEVICES="0,1", **caches)


@pytest.mark.parametrize(
    ("gpus", "visible", "devices"), [(8, None, 8), (8, "3,1", 2), (1, "0,1", 1), (2, "", 0), (None, None, 16)]
)
def test_devices_are_counted_without_the_driver(tmp_path, monkeypatch, gpus, visible, devices):
    folder = tmp_path / "gpus"
    for number in range(gpus or 0):
        (folder / f"0000:{number:02}:00.0").mkdir(parents=True)
    monkeypatch.setattr(_enabling, "_GPUS", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _enabling._most_devices() == devices


def test_programs_that_enable_frameworks_themselves(tmp_path):
    for name in ("cupy", "numba_cuda", "cuda.core", "rmm"):
        pytest.importorskip(name)
    variables = {"CUDA_VISIBLE_DEVICES": "0,1", **rmm_compiled()}
    framework_machine(tmp_path)("run/frameworks.py", "by_the_programs_own_call", **variables)


def test_numbas_own_variable_goes_with_the_hook(tmp_path):
    pytest.importorskip("numba_cuda")
    variables = {"NUMBA_CUDA_MEMORY_MANAGER": "gpupool.numba"}
    framework_machine(tmp_path)("run/frameworks.py", "of_numba", **variables)


def test_a_limit_of_cupys_is_read_when_it_first_asks_for_memory(tmp_path):
    pytest.importorskip("cupy")
    framework_machine(tmp_path)("run/frameworks.py", "of_cupy_with_a_limit", CUPY_GPU_MEMORY_LIMIT="50%")


# The first of a version may fetch and compile.
@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_pytorch_is_enabled_without_a_start_of_the_driver(tmp_path, version):
    machine = TorchMachine(version)
    machine.build()
    (tmp_path / "torch.py").write_text("import pytorch_in_place\n\npytorch_in_place.fill(__name__)\n")
    program, cache = "run/pytorch.py", COMPILED / "cache"
    machine.run("before_a_fork", program, PYTHONPATH=str(tmp_path), XDG_CACHE_HOME=str(cache))


def test_every_framework_of_the_hook_is_one_that_workers_enable():
    # Warp would be initialized before the program that has imported it has set it up.
    assert {*hook.FRAMEWORKS.values(), "warp"} == set(worker._FRAMEWORKS)
