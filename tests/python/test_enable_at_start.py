"""GPUPOOL_ENABLE, in an environment where gpupool's wheel has put its file that Python reads as it starts."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gpupool
import pytest

SOURCES = Path(gpupool.__file__).parents[1]
# What tells users of the file.
PAGE = Path(__file__).parents[2] / "docs" / "take-it-out.md"
# What a program says of gpupool, and of a module in the place of a framework.
TELL = "import sys; print('gpupool' in sys.modules, '_gpupool_enable' in sys.modules)"
USE = "import rmm; import _gpupool_enable as hook, gpupool._run.enabling as done; print(done.enabled, hook.failed)"


def environment(folder):
    """Make an environment: gpupool is there by its files, and a stand-in for RMM."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (place,) = folder.glob("lib/*/site-packages")
    (place / "gpupool").symlink_to(SOURCES / "gpupool")
    for name in ("_gpupool_enable.py", "gpupool_enable.pth"):
        shutil.copy(SOURCES / name, place)
    (place / "rmm.py").write_text(
        "import warnings\n\n"
        "__version__ = '25.12'\n"
        "# It is too old for gpupool's resources in C++, as gpupool says where it is not told to be quiet.\n"
        "warnings.filterwarnings('ignore', 'gpupool has no resource in C', RuntimeWarning)\n\n\n"
        "class mr:\n"
        "    found = {}\n"
        "    CallbackMemoryResource = staticmethod(lambda allocate, deallocate: (allocate, deallocate))\n"
        "    get_per_device_resource = staticmethod(lambda device: mr.found.get(device))\n"
        "    set_per_device_resource = staticmethod(lambda device, resource: mr.found.update({device: resource}))\n"
    )
    return place


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return environment(tmp_path_factory.mktemp("environment"))


def start(site, *arguments, folder=None, **variables):
    """Run the environment's Python."""
    return run(site.parents[2] / "bin" / "python", *arguments, folder=folder, **variables)


def run(python, *arguments, folder=None, **variables):
    """Run a Python with none of the variables that matter here but those given."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GPUPOOL_ENABLE")}
    return subprocess.run(
        [str(python), *map(str, arguments)],
        env={**inherited, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def told(site, *arguments, **options):
    """Return what a program printed, which must have complained of nothing."""
    done = start(site, *arguments, **options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("options", "variables", "has_hook"),
    [
        ((), {}, False),
        ((), {"GPUPOOL_ENABLE": ""}, False),
        ((), {"GPUPOOL_ENABLE": "all"}, True),
        # Options that leave out variables, or the user's folder, leave the file.
        *((option, {"GPUPOOL_ENABLE": "all"}, True) for option in (("-I",), ("-E",), ("-s",))),
        # Without the module site no package is there either.
        (("-S",), {"GPUPOOL_ENABLE": "all"}, False),
    ],
)
def test_a_program_that_imports_no_framework_loads_the_hook_alone(site, options, variables, has_hook):
    assert told(site, *options, "-c", TELL, **variables) == f"False {has_hook}"


@pytest.mark.parametrize("value", ["rmm", "torch, rmm", "all", "torch"])
def test_frameworks_that_are_named_are_enabled(site, value):
    enabled = "set()" if value == "torch" else "{'rmm'}"
    assert told(site, "-c", USE, GPUPOOL_ENABLE=value) == f"{enabled} set()"


def test_a_wrong_name_is_a_warning(site):
    done = start(site, "-c", USE, GPUPOOL_ENABLE="rmm,pytorch,nvmath")
    assert (done.returncode, done.stdout.strip()) == (0, "{'rmm'} set()")
    said = (
        "GPUPOOL_ENABLE names 'pytorch', 'nvmath', which gpupool cannot enable; "
        "there are: cuda_core, cupy, numba, rmm, torch, all"
    )
    assert done.stderr == f"gpupool:1: RuntimeWarning: {said}\n"
    # Nor does it end a Python whose warnings are errors, or one without standard error.
    done = start(site, "-W", "error", "-c", USE, GPUPOOL_ENABLE="rmm,pytorch,nvmath")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "{'rmm'} set()", f"gpupool: {said}\n")


@pytest.mark.parametrize(
    "value", [os.fsdecode(b"\xff\xfe"), "x" * 9000, "a\nb", "-1", "*"], ids=lambda value: ascii(value[:9])
)
def test_garbage_is_a_warning_that_names_it(site, value):
    done = start(site, "-c", "print(1)", GPUPOOL_ENABLE=value)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert f"GPUPOOL_ENABLE names {value!a}, which gpupool cannot enable" in done.stderr


def test_a_framework_that_cannot_be_enabled_is_a_warning(site, tmp_path):
    (tmp_path / "torch.py").write_text("__version__ = '1.0'\n")
    done = start(site, "-c", "import torch; print(torch.__version__)", GPUPOOL_ENABLE="torch", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "1.0\n")
    assert done.stderr.count("\n") == 1
    assert "torch stays on its own memory" in done.stderr
    assert "pip install 'torch>=2.11'" in done.stderr


def test_a_gpupool_that_is_gone_is_a_warning(site, tmp_path):
    (tmp_path / "gpupool").mkdir()
    (tmp_path / "gpupool" / "__init__.py").write_text("raise ImportError('half of it is gone')\n")
    done = start(site, "-c", "import rmm; print(rmm.__version__)", GPUPOOL_ENABLE="rmm", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "25.12\n")
    assert "half of it is gone" in done.stderr


CHILDREN = """
import multiprocessing, subprocess, sys

def use(_):
    import rmm
    import gpupool._run.enabling as done
    return done.enabled

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(use, [0]))
    subprocess.run([sys.executable, "-c", {use!r}], check=True)
"""


def test_what_a_program_starts_has_it_too(site, tmp_path):
    (tmp_path / "program.py").write_text(CHILDREN.format(use=USE))
    said = told(site, "-m", "gpupool", "run", "--rmm", "program.py", folder=tmp_path)
    assert said.splitlines() == ["[{'rmm'}]", "{'rmm'} set()"]
    # What was named before stays.
    (tmp_path / "tell.py").write_text("import os; print(os.environ['GPUPOOL_ENABLE'])")
    said = told(site, "-m", "gpupool", "run", "--rmm", "tell.py", folder=tmp_path, GPUPOOL_ENABLE="torch")
    assert said == "rmm,torch"


@pytest.mark.parametrize(("option", "is_read"), [("-B", True), ("-s", False), ("-I", False), ("-S", False)])
def test_in_the_users_folder_more_options_leave_it_out(tmp_path, option, is_read):
    python, variables = sys._base_executable, {"PYTHONUSERBASE": str(tmp_path)}
    place = Path(run(python, "-c", "import site; print(site.getusersitepackages())", **variables).stdout.strip())
    place.mkdir(parents=True)
    for name in ("_gpupool_enable.py", "gpupool_enable.pth"):
        shutil.copy(SOURCES / name, place)
    done = run(python, option, "-c", TELL, GPUPOOL_ENABLE="all", **variables)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, f"False {is_read}", "")


def test_the_file_can_be_deleted_alone(tmp_path):
    site = environment(tmp_path / "environment")
    (command,) = re.findall(r'^python -c "(.*gpupool_enable\.pth.*)"$', PAGE.read_text(), re.MULTILINE)
    assert told(site, "-c", command) == ""
    assert not (site / "gpupool_enable.pth").exists()
    assert told(site, "-c", TELL, GPUPOOL_ENABLE="all") == "False False"
    (tmp_path / "program.py").write_text(USE)
    assert told(site, "-m", "gpupool", "run", "--rmm", "program.py", folder=tmp_path) == "{'rmm'} set()"


def test_the_line_is_whole():
    """A line of such a file that does not begin with import is a folder; the guide shows this one."""
    (line,) = (SOURCES / "gpupool_enable.pth").read_text().splitlines()
    assert line.startswith("import ")
    assert line in PAGE.read_text().splitlines()


def test_the_guide_tells_what_was_measured():
    result = json.loads((PAGE.parents[1] / "benches" / "results" / "simulated" / "start.json").read_text())
    measured = [
        (start["passed"]["least_us"], start["processor"]["median_us"], result["importtime"][kind]["site"]["least_us"])
        for kind, start in result["a_start"].items()
    ]
    costs = [
        [(with_it - without) / 1000 for without, with_it in zip(measured[0], row, strict=True)] for row in measured
    ]
    said = [f"{min(row):.1f} to {max(row):.1f} ms" for row in costs[1:]]
    text = " ".join(PAGE.read_text().split())
    assert f"takes {said[0]} longer with the file, and {said[1]} with the variable" in text
    # Without the variable nothing more is imported, and with it the hook alone.
    imported = [set(start["imported_besides"]) for start in result["importtime"].values()]
    assert imported == [set(), set(), {"_gpupool_enable"}]
