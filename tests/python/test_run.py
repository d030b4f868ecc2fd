"""``gpupool run`` runs a program as Python does."""

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import forks
import gpupool
import pytest
from abi import build_driver, build_holder
from gpupool._run import watching
from running import PROGRAMS, SHARED
from watched import watch_library

FOLDER = PROGRAMS / "run"
ENDS, TOLD = FOLDER / "ends.py", FOLDER / "told.py"


def start(*command, given="", folder=None, **variables):
    """Run this interpreter, with gpupool where it can be found; return how it ended."""
    places = [str(SHARED.parents[3] / "python"), *filter(None, [variables.pop("PYTHONPATH", None)])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), **variables}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        input=given,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def both(*command, **options):
    """Run a program by Python itself and by ``gpupool run``: what it wrote, and how it ended."""
    ended = [start(*first, *command, **options) for first in ((), ("-m", "gpupool", "run"))]
    return [(one.returncode, one.stdout, one.stderr) for one in ended]


def start_ours(*arguments, folder=".", **variables):
    """Run ``gpupool run`` in a process that has found gpupool imported; return how it ended."""
    with contextlib.chdir(folder):
        return forks.start_command("run", *arguments, **variables)


@pytest.mark.parametrize(
    "way",
    [
        "well",
        "by_an_error",
        "by_a_number",
        "by_a_text",
        "by_nothing",
        "by_ctrl_c",
        "by_its_own_hook",
        "after_its_threads",
        "at_once",
        "with_an_error_in_a_thread",
    ],
)
def test_it_ends_as_the_program_does(way):
    own, ours = both(ENDS, way)
    assert ours == own
    assert own[1] or own[2] or own[0] == 7 or way == "by_nothing"


def test_a_module_ends_as_the_module_does():
    for way in ("by_an_error", "by_a_number", "by_ctrl_c"):
        own, ours = both("-m", "ends", way, folder=FOLDER)
        assert ours == own
        assert own[0] not in (0, 2)


def test_a_hook_that_fails_is_told():
    own, ours = both(ENDS, "by_a_hook_that_fails")
    end = "Original exception was:"
    assert ours[2].split(end)[1] == own[2].split(end)[1]
    assert ours[2].startswith("Error in sys.excepthook:")
    assert ours[0] == own[0] == 1


def test_recursion_ends_with_the_programs_frames_alone():
    _, ours = both(ENDS, "by_too_many_calls")
    assert ours[0] == 1
    assert "gpupool" not in ours[2].replace(str(SHARED.parents[3]), "")
    assert ours[2].rstrip().startswith("Traceback (most recent call last):")
    assert "RecursionError" in ours[2]


@pytest.mark.parametrize("arguments", [(), ("--report", "-m", "--", "a b", "--torch")])
def test_it_is_told_what_it_would_be(arguments, tmp_path):
    assert len({tuple(one) for one in both(TOLD, *arguments)}) == 1
    # A name that is relative, and a link, whose folder is that of what it leads to.
    assert len({tuple(one) for one in both("told.py", *arguments, folder=FOLDER)}) == 1
    (tmp_path / "link.py").symlink_to(TOLD)
    own, ours = both("link.py", *arguments, folder=tmp_path)
    assert ours == own
    assert own[0] == 0
    own, ours = both("-m", "told", *arguments, folder=FOLDER)
    assert ours == own
    assert own[0] == 0


def test_folders_and_zip_files_run_too(tmp_path):
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "__main__.py").write_text("import sys, part\nprint(__name__, sys.argv, sys.path[0], part)\n")
    (folder / "part.py").touch()
    with zipfile.ZipFile(tmp_path / "program.zip", "w") as packed:
        for file in folder.glob("*.py"):
            packed.write(file, file.name)
    for target in (folder, tmp_path / "program.zip"):
        own, ours = both(target, "x")
        assert ours == own
        assert "__main__" in own[1]


def test_compiled_files_and_standard_input_run_too(tmp_path):
    (tmp_path / "a.py").write_text("import sys\nprint(__name__, sys.argv, __file__, type(__loader__).__name__)\n")
    start("-m", "compileall", "-b", "-q", tmp_path)
    own, ours = both(tmp_path / "a.pyc", "x")
    assert ours == own
    assert "SourcelessFileLoader" in own[1]
    own, ours = both("-", "x", given="import sys\nprint(__name__, sys.argv, sys.path[0])\n")
    assert ours == own
    assert own[1] == "__main__ ['-', 'x'] \n"


def test_text_that_is_no_program_is_pythons_error(tmp_path):
    (tmp_path / "a.py").write_text("print('before')\nif\n")
    own, ours = both(tmp_path / "a.py")
    assert ours == own
    assert "SyntaxError" in own[2]
    # Settings of ours for the compiler are not the program's.
    (tmp_path / "b.py").write_text("# coding: latin-1\nprint(ascii('\xe9'))\n", encoding="latin-1")
    own, ours = both(tmp_path / "b.py")
    assert ours == own == (0, "'\\xe9'\n", "")


def test_what_is_not_there_is_told_as_python_does(tmp_path):
    own, ours = both(tmp_path / "none.py")
    assert (own[0], ours[0]) == (2, 2)
    assert ours[2] == f"gpupool: can't open file '{tmp_path / 'none.py'}': [Errno 2] No such file or directory\n"
    own, ours = both("-m", "no_such_module_at_all")
    assert ours == own
    assert own[0] == 1


def test_a_python_that_is_to_be_safe_adds_no_folder_to_the_path():
    for command in ((TOLD,), ("-m", "told")):
        own, ours = both(*command, PYTHONSAFEPATH="1", PYTHONPATH=str(FOLDER))
        assert ours == own


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a script, or a module after -m"),
        (("-m",), "name a script, or a module after -m"),
        (("--max-entries", "0", "x.py"), "argument --max-entries: '0' is not from 1 to"),
        (("--nvmath", "x.py"), "--nvmath"),
        (("--snapshot",), "--snapshot"),
        (("--guarantee", "much", "x.py"), "'much' is not a size"),
        (("--most", "200TiB", "x.py"), "at most 128 TiB"),
        (("--guarantee", "2GiB", "--most", "1GiB", "x.py"), "--guarantee must be at most --most"),
        (("--priority", "high", "x.py"), "'high' is no whole number"),
        (("--priority", "2147483648", "x.py"), "from -2147483647 to 2147483647"),
        (("--name",), "--name"),
        (("--name", os.fsdecode(b"\xff"), "x.py"), "is no name"),
    ],
)
def test_wrong_options(arguments, said):
    done = start_ours(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_folder_that_cannot_be_written_is_told_before_the_program_runs(tmp_path):
    path = tmp_path / "none" / "snapshot.pickle"
    done = start_ours("--snapshot", path, ENDS, "well")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"gpupool: {path}: No such file or directory\n"


# Each with what the environment says before, if anything, and what the program finds there beside it.
NEIGHBOURS = [
    ((), None, {}),
    (("--neighbours",), None, {"S": "1", "_NAME": "a.py"}),
    (("--neighbours",), "0", {"S": "1", "_NAME": "a.py"}),
    (("--neighbours",), "/shared", {"S": "/shared", "_NAME": "a.py"}),
    (("--neighbours=1",), "/shared", {"S": "{folder}/1", "_NAME": "a.py"}),
    (("--name", "a b"), None, {"S": "1", "_NAME": "a b"}),
    (
        ("--guarantee", "3MiB", "--most=2GB", "--priority", "-3"),
        None,
        {"S": "1", "_NAME": "a.py", "_GUARANTEE": str(3 << 20), "_MOST": "2000000000", "_PRIORITY": "-3"},
    ),
]


@pytest.mark.parametrize(("options", "before", "expected"), NEIGHBOURS)
def test_options_about_neighbours_are_variables_of_the_program(options, before, expected, tmp_path):
    (tmp_path / "1").mkdir()
    start_of_all = "GPUPOOL_NEIGHBOUR"
    (tmp_path / "a.py").write_text(
        f"import json, os, sys\n"
        f"found = {{name: value for name, value in os.environ.items() if name.startswith({start_of_all!r})}}\n"
        f"print(json.dumps([found, sys.argv[1:]]))\n"
    )
    variables = {} if before is None else {"GPUPOOL_NEIGHBOURS": before}
    done = start_ours(*options, "a.py", "--name", "own", folder=tmp_path, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    found, arguments = json.loads(done.stdout)
    expected = {start_of_all + name: value.format(folder=tmp_path) for name, value in expected.items()}
    assert (found, arguments) == (expected, ["--name", "own"])


def test_the_program_is_a_neighbour_from_its_first_memory_on(tmp_path):
    (tmp_path / "sockets").mkdir()
    (tmp_path / "a.py").write_text(
        "import os\n"
        "import gpupool\n"
        "assert os.listdir('sockets') == []\n"
        "buffer = gpupool.empty(1)\n"
        "assert len(os.listdir('sockets')) == 1\n"
        "(own,) = gpupool.neighbours()\n"
        "print(own.name, own.guarantee, own.most, own.priority)\n"
    )
    options = ("--neighbours=sockets", "--name", "server", "--guarantee", "1KiB", "--priority", "2")
    done = start_ours(*options, "a.py", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "server 1024 None 2\n", "")


def test_a_directory_for_neighbours_that_is_not_there_is_told_before_the_program_runs(tmp_path):
    (tmp_path / "a.txt").touch()
    for name, why in (("none", "No such file or directory"), ("a.txt", "Not a directory")):
        done = start_ours(f"--neighbours={name}", ENDS, "well", folder=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"gpupool: {name}: {why}\n")


@pytest.fixture
def watch():
    """Return the library that watches, or skip."""
    return str(watch_library())


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (None, "{watch}"),
        ("", "{watch}"),
        ("{own} libm.so.6", "{watch}:{own}:libm.so.6"),
        ("libm.so.6 {watch}", "libm.so.6 {watch}"),
    ],
)
def test_a_watched_program_is_started_as_without(before, expected, watch, tmp_path):
    """What the loader has before comes after, and a process that has the library is not started again."""
    own = build_holder(tmp_path / "own.so")
    (tmp_path / "a.py").write_text(
        "import json, os, sys, gpupool\n"
        "names = sorted(name for name in os.environ if 'GPUPOOL' in name)\n"
        "print(json.dumps([os.environ['LD_PRELOAD'], sys.argv, sys.flags.dev_mode, sys._xoptions, sys.warnoptions,\n"
        "                  gpupool._native.is_watched(), names]))\n"
    )
    variables = {} if before is None else {"LD_PRELOAD": before.format(own=own, watch=watch)}
    flags = ("-X", "dev", "-X", "own=1", "-W", "error::UserWarning")
    done = start(*flags, "-m", "gpupool", "run", "--watch", "a.py", "--watch", "b c", folder=tmp_path, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    preload, arguments, is_dev, options, warnings, is_watched, ours = json.loads(done.stdout)
    assert (preload, arguments) == (expected.format(own=own, watch=watch), ["a.py", "--watch", "b c"])
    assert (is_dev, options, warnings[-1]) == (True, {"dev": True, "own": "1"}, "error::UserWarning")
    assert (is_watched, ours) == (True, sorted({name for name in os.environ if "GPUPOOL" in name} | {"GPUPOOL_ENABLE"}))


@pytest.fixture
def holding(watch, tmp_path):
    """Write a program that takes device memory by a library of its own; return the variables that it runs with."""
    build_driver(tmp_path)
    build_holder(tmp_path / "libnccl.so.2")
    (tmp_path / "a.py").write_text(
        "import ctypes, sys\n"
        "driver, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p()\n"
        "assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == driver.cuCtxSetCurrent(context) == 0\n"
        "library = ctypes.CDLL('./libnccl.so.2')\n"
        "library.hold.restype, library.let_go.argtypes = ctypes.c_size_t, [ctypes.c_size_t]\n"
        "assert library.let_go(library.hold(30 << 20)) == 0\n"
        "assert library.hold(5 << 20)\n"
        "print(sys.argv)\n"
    )
    return {"folder": tmp_path, "GPUPOOL_RUNTIME": "cuda", "LD_LIBRARY_PATH": str(tmp_path), "FAKE_VMM": "1"}


@pytest.mark.parametrize(
    ("place", "options", "expected"),
    [("by its path", ("--report",), ["NCCL 5.0 MiB 30.0 MiB"]), ("on the path", (), [])],
)
def test_a_program_that_is_not_pythons_is_watched_too(place, options, expected, holding, tmp_path):
    """The program is the interpreter, for which that is no program of Python's."""
    (tmp_path / "bin").mkdir()
    server = tmp_path / "bin" / "server"
    server.symlink_to(sys.executable)
    target = server if place == "by its path" else server.name
    search = f"{server.parent}{os.pathsep}{os.environ['PATH']}"
    done = start("-m", "gpupool", "run", "--watch", *options, target, "-S", "a.py", "--report", PATH=search, **holding)
    assert (done.returncode, done.stdout) == (0, "['a.py', '--report']\n")
    lines = [" ".join(line.split()) for line in done.stderr.splitlines()]
    assert [line for line in lines if line.startswith("NCCL")] == expected
    assert bool(lines) == bool(expected)


def test_a_program_that_is_not_pythons_gets_its_variables_and_signals(watch):
    told = "echo $GPUPOOL_ENABLE; echo $GPUPOOL_NEIGHBOUR_NAME; echo $LD_PRELOAD; grep SigIgn /proc/self/status"
    done = start_ours("--watch", "--cupy", "--name", "a b", "sh", "-c", told)
    assert (done.returncode, done.stderr) == (0, "")
    enabled, name, preload, ignored = done.stdout.splitlines()
    assert (enabled, name, preload) == ("cupy", "a b", watch)
    # Python ignores these.
    bits = [1 << (number - 1) for number in (signal.SIGPIPE, signal.SIGXFSZ)]
    assert int(ignored.split()[1], 16) & sum(bits) == 0


def test_the_report_of_a_watched_program_says_who_held_what(holding):
    done = start("-m", "gpupool", "run", "--watch", "--report", "a.py", GPUPOOL_WATCH_REPORT="1", **holding)
    assert (done.returncode, done.stdout) == (0, "['a.py']\n")
    lines = [" ".join(line.split()) for line in done.stderr.splitlines()]
    # gpupool's report alone.
    assert lines[0].startswith("gpupool run: a.py, ")
    assert [line for line in lines if "MiB" in line] == ["NCCL 30.0 MiB, 5.00 MiB at the end"]
    assert lines[2:4] == ["gpupool was asked for no memory and for no handle", "device 0, double"]


def elf(path, *, machine=None, interpreter="/lib64/ld-linux-x86-64.so.2"):
    """Write the beginning of a program: its header, and a segment that names its loader if it has one."""
    head = bytearray(Path(sys.executable).read_bytes()[:64])
    name = b"" if interpreter is None else interpreter.encode() + b"\0"
    head[32:40], head[54:58] = struct.pack("<Q", 64), struct.pack("<HH", 56, 1)
    if machine is not None:
        head[18:20] = struct.pack("<H", machine)
    kind = 1 if interpreter is None else 3
    path.write_bytes(bytes(head) + struct.pack("<IIQQQQQQ", kind, 4, 120, 0, 0, len(name), len(name), 1) + name)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("made", "mode", "why"),
    [
        ({"interpreter": None}, 0o755, "is statically linked"),
        ({"interpreter": "/lib/ld-musl-x86_64.so.1"}, 0o755, "is for musl, by /lib/ld-musl-x86_64.so.1"),
        ({}, 0o4755, "gets rights beyond those of its user"),
        ({}, 0o2755, "gets rights beyond those of its user"),
        ({"machine": 8}, 0o755, "is no program for the same kind of machine as this gpupool"),
    ],
)
def test_a_program_that_cannot_be_watched(made, mode, why, watch, tmp_path):
    path = elf(tmp_path / "server", **made)
    path.chmod(mode)
    done = start_ours("--watch", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"gpupool: --watch cannot watch {path}: it {why}")
    assert done.stderr.count("\n") == 1


def test_a_program_that_cannot_be_executed_is_told(watch, tmp_path):
    path = elf(tmp_path / "server")
    path.chmod(0o644)
    done = start_ours("--watch", path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"gpupool: {path}: Permission denied\n")


def test_a_snapshot_is_of_python_programs(tmp_path):
    done = start_ours("--watch", "--snapshot", tmp_path / "a.pickle", sys.executable)
    assert done.returncode == 2
    assert f"--snapshot is for Python programs, and {sys.executable} is none" in done.stderr


def test_a_program_that_is_not_pythons_is_no_program_without_being_watched():
    done = start_ours(sys.executable)
    assert done.returncode == 1
    assert done.stderr.startswith("SyntaxError: ")


@pytest.fixture
def executed(monkeypatch):
    """Return what would have been executed, each time that something would have been, and execute nothing."""
    found = []
    monkeypatch.setattr(os, "execve", lambda *command: found.append(command))
    yield found
    # These are Python's own choices, which an execution takes back.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("folder", "platform", "why"),
    [
        ("no library", "linux", "/no library/lib/libgpupool_watch.so, which is missing: .* run `make library`"),
        ("a folder", "linux", "LD_PRELOAD takes no path with spaces or colons: install gpupool elsewhere"),
        ("plain", "darwin", "--watch needs Linux, and this is darwin"),
    ],
)
def test_a_library_that_cannot_be_loaded(folder, platform, why, executed, monkeypatch, tmp_path):
    if folder == "a folder":
        (tmp_path / folder / "lib").mkdir(parents=True)
        (tmp_path / folder / "lib" / "libgpupool_watch.so").touch()
    monkeypatch.setattr(gpupool, "__file__", str(tmp_path / folder / "__init__.py"))
    monkeypatch.setattr(watching, "sys", types.SimpleNamespace(platform=platform))
    with pytest.raises(gpupool.Error, match=why):
        watching.execute(sys.executable, ["python"], has_report=False)
    assert executed == []


def test_a_process_that_the_library_does_not_get_into_is_not_started_for_ever(watch, executed, monkeypatch):
    watching.begin_anew(has_report=False)
    [(path, arguments, environment)] = executed
    assert (path, arguments) == (sys.executable, [sys.executable, *sys.orig_argv[1:]])
    monkeypatch.setattr(os, "environ", environment)
    with pytest.raises(gpupool.Error, match=f"the loader has not loaded {watch}"):
        watching.begin_anew(has_report=False)
    assert len(executed) == 1
