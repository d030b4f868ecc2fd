"""What ``gpupool run`` reports and writes at the end of a program."""

import pytest
from forks import start_command
from gpupool._traces import trace as _trace
from running import PROGRAMS

PROGRAM = PROGRAMS / "run" / "allocates.py"
MIB = 1 << 20


def run(*options, how="well", **variables):
    """Run the program, and return how it ended."""
    return start_command("run", *options, PROGRAM, how, **variables)


def figures(done):
    """Return the figures of a report by their names, each device's after its number; and what was said before it."""
    before, start, report = done.stderr.partition("gpupool run: ")
    assert start, done.stderr
    assert "gpupool run: " not in report, "there are two reports"
    found, place = {}, ""
    for line in report.splitlines()[1:]:
        name, _, value = line.strip().partition("  ")
        if line.startswith("device "):
            place = line.split(",")[0] + " "
        elif not line.startswith(" "):
            place = ""
        found[place + name] = value.strip()
    return found, before


def test_figures():
    done = run("--report")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"gpupool run: {PROGRAM}, ")
    found, _ = figures(done)
    # In PyTorch a segment of 20 MiB has room for six such requests.
    assert found["device 0 requested at most"] == "60.0 MiB"
    assert found["device 0 reserved at most"] == "60.0 MiB (1.00 of what was requested)"
    assert found["device 0 PyTorch's own allocator, simulated"] == "80.0 MiB (1.33 of what was requested)"
    assert found["device 0 with expandable segments"] == "60.0 MiB (1.00 of what was requested)"
    assert found["device 0 allocations, driver calls"].startswith("20, ")
    assert found["device 0 memory ran out"] == "0 requests tried again, 0 failed"
    assert found["enabled"] == "nothing: none of the frameworks was imported"


def test_handles_and_pinned_memory_are_in_it():
    found, _ = figures(run("--report", how="with_a_handle"))
    assert found["simulated"].startswith("1 made in ")
    assert found["simulated"].endswith(", 1 request")
    assert found["allocations, driver calls"].startswith("1, ")
    assert found["reserved at most"]


@pytest.mark.parametrize(
    ("how", "memory", "expected"),
    [
        (
            "on_two_devices",
            None,
            {
                "device 0 requested at most": "60.0 MiB",
                "device 1 requested at most": "1.00 MiB",
                "device 1 PyTorch's own allocator, simulated": "2.00 MiB (2.00 of what was requested)",
            },
        ),
        (
            "with_requests_that_fail",
            70 * MIB,
            {
                "device 0 requested at most": "61.0 MiB",
                "device 0 memory ran out": "1 requests tried again, 2 failed",
            },
        ),
        (
            "with_peaks_that_were_reset",
            None,
            {"device 0 reserved at most": "60.0 MiB (1.00 of what was requested)"},
        ),
        # PyTorch's allocator would have no memory for it.
        (
            "well",
            64 * MIB,
            {
                "device 0 PyTorch's own allocator, simulated": "out of memory, after 60.0 MiB were reserved",
                "device 0 with expandable segments": "60.0 MiB (1.00 of what was requested)",
            },
        ),
    ],
)
def test_figures_of_a_program(how, memory, expected):
    variables = {} if memory is None else {"GPUPOOL_HOST_MEMORY": str(memory)}
    found, _ = figures(run("--report", how=how, **variables))
    assert found.items() >= expected.items()


@pytest.mark.parametrize(("how", "code", "said"), [("by_an_error", 1, "ValueError: 20\n"), ("by_a_number", 7, "")])
def test_it_comes_however_the_program_ends(how, code, said, tmp_path):
    path = tmp_path / "snapshot.pickle"
    done = run("--report", "--snapshot", path, how=how)
    found, before = figures(done)
    assert (done.returncode, found["device 0 requested at most"]) == (code, "60.0 MiB")
    assert before.endswith(said)
    assert _trace.read(str(path)).peak_live == 60 * MIB


def test_it_comes_last():
    found, before = figures(run("--report", how="late"))
    assert before == "the program's own end\n"
    assert found["device 0 requested at most"] == "60.0 MiB"


def test_children_do_not_report(tmp_path):
    path = tmp_path / "snapshot.pickle"
    done = run("--report", "--snapshot", path, how="with_children")
    found, before = figures(done)
    assert (done.returncode, before, found["device 0 requested at most"]) == (0, "", "60.0 MiB")
    assert _trace.read(str(path)).peak_live == 60 * MIB


@pytest.mark.parametrize(
    ("options", "how", "recorded"), [(["--max-entries", "16"], "well", 16), ([], "with_a_recording_of_its_own", 0)]
)
def test_a_recording_that_is_not_whole_is_not_simulated(options, how, recorded):
    found, _ = figures(run("--report", *options, how=how))
    said = found["device 0 PyTorch's own allocator, simulated"]
    assert said.startswith("not known, for the recording has ")
    assert int(said.split(" of 20 allocations")[0].split()[-1]) <= recorded
    assert "--max-entries" in said
    assert found["device 0 requested at most"] == "60.0 MiB"


def test_a_program_that_does_not_use_gpupool():
    done = run("--report", how="nothing")
    assert done.stderr.endswith("gpupool was asked for no memory and for no handle\n")


def test_a_snapshot_has_stacks_and_is_where_it_was_asked_for(tmp_path):
    done = start_command("run", "--snapshot", tmp_path / "a.pickle", PROGRAM, "elsewhere")
    assert (done.returncode, done.stderr) == (0, "")
    trace = _trace.read(str(tmp_path / "a.pickle"))
    assert any("take" in frame for stack in trace.call_stacks for frame in stack)


def test_a_snapshot_that_cannot_be_written_is_told(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "a.pickle"
    removal = f"import shutil; shutil.rmtree({str(folder)!r})"
    (tmp_path / "program.py").write_text(f"import gpupool\ngpupool.empty(1)\n{removal}\n")
    done = start_command("run", "--report", "--snapshot", path, tmp_path / "program.py")
    assert done.returncode == 1
    assert done.stderr.startswith(f"gpupool run: no snapshot: {path}: No such file or directory\n")
    assert "requested at most" in done.stderr


@pytest.mark.parametrize(("end", "code"), [("", 1), ("raise SystemExit(0)", 1), ("raise SystemExit(3)", 3)])
def test_a_full_disk_leaves_the_snapshot_that_was_there(tmp_path, end, code):
    path = tmp_path / "a.pickle"
    path.write_text("a good file")
    program = tmp_path / "program.py"
    program.write_text(
        "import gpupool, resource\n"
        "held = [gpupool.empty(1000) for _ in range(1000)]\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n{end}\n"
    )
    done = start_command("run", "--snapshot", path, program)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"gpupool run: no snapshot: {path}: File too large\n"
    assert path.read_text() == "a good file"
    assert sorted(tmp_path.iterdir()) == [path, program]
