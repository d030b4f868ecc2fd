"""How commands end: with an exit code, and with one line if they failed, whatever went wrong."""

import os
import subprocess
import sys

import gpupool
import pytest
from gpupool import _native
from gpupool.__main__ import main
from gpupool._cli import replay as _replay
from gpupool._traces.bounds import MAX_LAG, MAX_THREADS
from running import run_program, start_command, start_program
from snapshots import block, entry, segment, write

MIB = 1 << 20


@pytest.fixture
def trace(tmp_path):
    """Write a snapshot with a trace, and return its path."""
    return write(tmp_path / "s.pickle", [entry("alloc", 0, 512)], segments=[segment(0, block(MIB))])


def with_output(target, *arguments):
    """Run the command line with standard output redirected as a shell does; return the exit code and the error."""
    command = ["sh", "-c", f'exec "$@" {target}', "sh", sys.executable, "-m", "gpupool", *map(str, arguments)]
    # Without a buffer argparse passes over what it cannot print.
    variables = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, env=variables, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


FULL = "gpupool: standard output cannot be written: No space left on device; make room there, or send it elsewhere\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "TRACE"],
        ["plot", "TRACE", "-o", "OUT"],
        ["info", "--no-smoke-test"],
        ["top", "--once"],
        ["demo"],
        ["--help"],
    ],
)
def test_full_disk_behind_standard_output(trace, tmp_path, arguments):
    names = {"TRACE": trace, "OUT": tmp_path / "o.html"}
    assert with_output("> /dev/full", *(names.get(name, name) for name in arguments)) == (1, FULL)


def test_closed_standard_output_and_error(trace, tmp_path):
    assert with_output(">&-", "replay", trace) == (0, "")
    assert with_output(">&- 2>&-", "replay", trace)[0] == 0
    assert with_output(">&- 2>&-", "replay", "missing")[0] == 1
    assert with_output("2> /dev/full", "replay", "missing")[0] == 1


def test_full_disk_behind_a_picture(trace, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("o.html", "o.png"):
        done = start_program("command_line/small_files.py", "plot", trace, "-o", folder / name)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"gpupool: {folder / name}: cannot be written: File too large\n"
    assert [*folder.iterdir()] == []


def test_ctrl_c(trace, tmp_path):
    for arguments in (["replay", trace], ["plot", trace, "-o", tmp_path / "o.html"]):
        done = start_program("command_line/interrupted.py", *arguments)
        assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("threads", [0, MAX_THREADS + 1, 10**9, 10**30])
def test_threads_that_no_replay_and_no_demo_has(trace, capsys, threads):
    for arguments in (["replay", trace], ["demo"]):
        with pytest.raises(SystemExit, match="2"):
            main([*arguments, "--threads", str(threads)])
        assert f"argument --threads: '{threads}' is not from 1 to 1024" in capsys.readouterr().err


def test_the_replay_itself_has_the_same_bounds():
    slots, sizes, streams = bytes(4), (1).to_bytes(8, "little"), bytes(4)
    result = _native.replay(slots, sizes, streams, 1, MAX_THREADS, "gpupool")
    assert result.peak_reserved > 0
    with pytest.raises(gpupool.InvalidValue, match="a replay has at most 1024 threads, not 1025"):
        _native.replay(slots, sizes, streams, 1, MAX_THREADS + 1, "gpupool")
    with pytest.raises(gpupool.InvalidValue, match="a replay lags by at most 1000000 pieces of work, not 1000001"):
        _native.replay(slots, sizes, streams, 1, 1, "gpupool", None, 0, MAX_LAG + 1)


def test_threads_that_the_system_does_not_start(trace):
    done = start_program("command_line/large_stacks.py", "demo")
    assert done.returncode == 1
    assert done.stderr == "gpupool: 16 threads cannot be started here, take fewer: can't start new thread\n"
    # Threads of Rust take their stacks from this variable.
    done = start_command("replay", trace, "--threads", "2", RUST_MIN_STACK=str(1 << 47))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("gpupool: no thread could be started for a replay: ")


def test_replay_without_memory_for_it():
    run_program("command_line/little_memory_for_a_replay.py")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (gpupool.InvalidValue("two\nlines \x1b[2J \udcff"), "two\\nlines \\x1b[2J \\udcff"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError(13, "Permission denied", "a\nfile"), "a\\nfile: Permission denied"),
        (MemoryError(), "out of memory: this process can have no more; free some, or raise its limit (ulimit -v)"),
        (RecursionError("too deep"), "a bug in gpupool, please report it: RecursionError: too deep, at "),
        (OverflowError("too large"), "a bug in gpupool, please report it: OverflowError: too large, at "),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "no"), "a bug in gpupool, please report it: UnicodeEnc"),
        (BaseException("a panic\nof Rust"), "a bug in gpupool, please report it: BaseException: a panic\\nof"),
    ],
)
def test_every_error_ends_in_a_line(trace, capsys, monkeypatch, error, line):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(_replay, "run", fail)
    assert main(["replay", trace]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"gpupool: {line}")
    assert output.err.count("\n") == 1


def test_a_fault_says_where_it_is(trace, capsys, monkeypatch):
    monkeypatch.setattr(_replay, "rows", None)
    assert main(["replay", trace]) == 1
    error = capsys.readouterr().err
    assert "TypeError: 'NoneType' object is not callable, at " in error
    assert f"{os.path.join('gpupool', '_cli', 'replay.py')}:" in error


def test_output_that_shows_no_such_character(tmp_path):
    path = tmp_path / "Zo\u00eb.csv"
    path.write_text("Thread,Time,Action,Pointer,Size,Stream\n1,1,allocate,0,512,0\n")
    done = start_command("replay", path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"Zo\xeb.csv" in done.stdout
