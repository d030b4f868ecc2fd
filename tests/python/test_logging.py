"""gpupool's records in Python's `logging`, in processes of their own."""

import re
import sys

import forks
import guide
import pytest
from forks import Machine
from running import functions_of, run_program

TIME = r"\d+(?:\.\d)? (?:us|ms|s)"


@pytest.mark.parametrize("set_up", ["not at all", "for warnings"])
def test_nothing_is_said_and_no_thread_is_started_unless_asked_for(set_up):
    assert forks.run_program("telling/logs.py", "nothing_unless_asked_for", set_up) == ""


def test_what_is_seldom_is_told_at_info():
    lines = [
        r"runtime runtime host: 2 device\(s\)",
        rf"handle simulated 1\.0\.0: handle 1 created on device 0 in {TIME}, 1\.0 MiB of the device",
        r"memory pool \(0, 1\) on device 0: no memory for 62914560 bytes, waiting for .*",
        r"memory out of memory on device 0: tried to allocate 60\.0 MiB .* whose limit is 64\.0 MiB.*",
        rf"handle simulated 1\.0\.0: handle 2 created on device 0 in {TIME}, 1\.0 MiB of the device",
        rf"handle simulated 1\.0\.0: handle 3 created on device 0 in {TIME}, 1\.0 MiB of the device",
        rf"handle simulated: 2 idle handles destroyed on device 0 in {TIME}",
    ]
    told = forks.run_program("telling/logs.py", "use", "INFO")
    assert re.fullmatch("".join(f"INFO gpupool\\.{line}\n" for line in lines), told), told


def test_growing_moving_and_giving_back_are_told_at_debug():
    told = forks.run_program("telling/logs.py", "grow_move_and_give_back", "DEBUG")
    grew = r"DEBUG gpupool\.memory pool \(0, 1\) on device 0: grew by (.*) of new and (.*) of moved pages in "
    sizes = re.findall(rf"{grew}{TIME} for \d+ bytes, (.*) reserved", told)
    assert sizes[:3] == [("20.0 MiB", "0.0 MiB", f"{total}.0 MiB") for total in (20, 40, 60)]
    assert sizes[3][1] != "0.0 MiB"
    assert re.search(
        rf"DEBUG gpupool\.memory pool \(0, 1\) on device 0: trimmed, 60\.0 MiB given back in {TIME}\n", told
    )


@pytest.mark.parametrize(
    ("function", "patterns"),
    [
        ("find_memory_after_all", [r"pool \(0, 1\) on device 0: found 31457280 bytes after \d"]),
        (
            "fail_to_register",
            [
                r"WARNING gpupool\.memory pool \(0, 1\): fail_to_register\.<locals>\.register, a callback of "
                r"on_segment, raised OSError: no room to register for .*Added"
            ],
        ),
        (
            "fail_to_make_a_handle",
            [
                "INFO gpupool.handle giving back what is not in use for a handle, as there was no memory for it: "
                "simulated: ",
                "INFO gpupool.handle no handle could be made: simulated: ",
            ],
        ),
    ],
)
def test_what_goes_wrong_is_told(function, patterns):
    told = forks.run_program("telling/logs.py", function, "INFO")
    assert [pattern for pattern in patterns if not re.search(pattern, told)] == [], told


@pytest.mark.parametrize("function", ["fail_to_register_in_a_thread", "warn_as_the_process_ends"])
def test_warnings_are_told_at_the_level_of_warnings(function):
    told = forks.run_program("telling/logs.py", function, "WARNING")
    assert re.fullmatch(r"WARNING gpupool\.memory pool \(0, 1\): .* raised OSError: no room to register .*\n", told), (
        told
    )


def test_waits_at_a_limit_are_told():
    told = forks.run_program("telling/logs.py", "wait_at_a_limit", "INFO")
    waits = re.findall(
        r"INFO gpupool\.handle simulated: waited .*? (?:us|ms|s)( in vain)? for a handle on device 0", told
    )
    assert waits == [" in vain", ""]
    assert "device 0, all of its limit in use\n" in told


def test_a_library_is_told_with_its_file_and_a_handle_with_its_version(tmp_path):
    machine = Machine("cuda", tmp_path)
    file = machine.install("cublas")
    told = machine.run("telling/logs.py", "load_a_library", "INFO")
    assert re.findall(r"gpupool\.library (.*) in ", told) == [f"cublas 1.2.3: loaded from {file}"]
    assert re.findall(r"gpupool\.handle (.*) in ", told) == ["cublas 1.2.3: handle 1 created on device 0"]
    assert re.search(r"gpupool\.runtime runtime cuda: 2 device\(s\), driver \d+\.\d+\n", told)


def test_the_guide_shows_records_as_they_are(tmp_path):
    machine = Machine("cuda", tmp_path)
    machine.install("cublas")
    told = machine.run("telling/logs.py", "load_a_library", "INFO")
    # The device's memory is only known there, and the library waits like any other.
    told += forks.run_program("telling/logs.py", "wait_at_a_limit", "INFO").replace("simulated", "cublas")

    def shape(line):
        return re.sub(r"\S*/\S+", "#", guide.shape(line))

    shapes = {shape(line) for line in told.splitlines()}
    shown = re.findall(r"^INFO:gpupool\..+$", (guide.ROOT / "docs/statistics.md").read_text(), re.MULTILINE)
    assert len(shown) == 4
    for line in shown:
        assert shape(" ".join(line.split(":", 2))) in shapes, line


def test_why_the_runtime_is_simulated_is_told():
    told = forks.start_bare_program("telling/logs.py", "choose_a_runtime", "INFO", GPUPOOL_RUNTIME=None).stdout
    if "runtime host" not in told:
        pytest.skip("this machine has a GPU")
    assert re.search(r"gpupool\.runtime runtime cuda was passed over: .*\n.*runtime hip was passed over: ", told)
    assert "gpupool.runtime no GPU was found: devices are simulated, which GPUPOOL_RUNTIME=host asks for" in told


@pytest.mark.parametrize("function", functions_of("telling/log_levels.py"))
def test_levels(function):
    forks.run_program("telling/log_levels.py", function)


def test_levels_set_before_the_import_count():
    assert "handle 1 created" in run_program("telling/logs_of_an_import.py")


@pytest.mark.parametrize("function", functions_of("telling/log_handlers.py", "one_that_raises_stops_nothing"))
def test_handlers(function):
    forks.run_program("telling/log_handlers.py", function)


@pytest.mark.parametrize("interface", ["without the GIL", "with the GIL"])
def test_a_c_caller_never_waits_for_a_handler(interface):
    forks.run_program("telling/log_handlers.py", "a_c_caller_never_waits_for_one", interface)


def test_a_handler_that_raises_stops_nothing():
    done = forks.start_program("telling/log_handlers.py", "one_that_raises_stops_nothing")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeError: a filter") == 1


def test_none_is_lost_at_the_end_of_the_process():
    told = forks.run_program("telling/logs.py", "make_many_handles", "INFO")
    assert re.findall(r"own: handle (\d+) created", told) == [str(number) for number in range(1, 3001)]


@pytest.mark.parametrize("function", functions_of("telling/log_threads.py"))
def test_threads(function):
    if function == "under_gevent":
        pytest.importorskip("gevent")
    if function == "none_starts_beside_a_fork" and not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("free-threaded Python gives the thread no moment in which it waits to run")
    assert "handle 1 created" in run_program("telling/log_threads.py", function)


@pytest.mark.parametrize("function", functions_of("telling/log_forks.py"))
def test_forked_children(function):
    forks.run_program("telling/log_forks.py", function)
