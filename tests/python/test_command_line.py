"""The command line."""

import re

import gpupool
import pytest
from gpupool.__main__ import main
from running import start_command


def test_demo_shows_fewer_handles_than_threads():
    done = start_command("demo", "--threads", "4", "--waves", "8")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("No GPU: the host runtime simulates one")
    row = re.fullmatch(r"simulated +1\.0\.0 +32 +(\d+) +\d+ ns +[\d.]+ ms +2048 MiB", lines[-1])
    assert row is not None
    assert 4 <= int(row[1]) < 32


def test_demo_that_fails_says_why():
    done = start_command("demo", GPUPOOL_HOST_MEMORY="1000000")
    assert done.returncode == 1
    assert done.stderr.startswith("gpupool: out of memory on device 0: host: allocate failed")


@pytest.mark.parametrize("command", ["info", "run", "replay", "top"])
def test_what_a_command_does_not_know_is_said_with_its_own_usage(command, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([command, "--foo", "file"])
    told = capsys.readouterr().err
    assert told.startswith(f"usage: gpupool {command} ")
    assert f"gpupool {command}: error: unrecognized arguments: --foo" in told


def test_a_command_on_a_machine_without_a_gpu_says_so_in_what_it_prints_alone():
    done = start_command("info", GPUPOOL_RUNTIME=None)
    assert ("no GPU was found" in done.stdout, done.stderr) in ((True, ""), (False, ""))


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"gpupool {gpupool.__version__}\n"
