"""Programs that are started with `libgpupool_watch.so`, on doubles of the driver and the runtime.

What is C, C++ or Rust checks itself what it sees; it is in tests/watch.
"""

import os
import re
import shutil
import sys

import pytest
from abi import build_nvml
from cpp_programs import can_sanitize
from forks import Machine, run_program
from running import functions_of
from watched import Watched, as_macro, cases_of, known_calls, watch_library


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    """Return a folder with the driver that notes what it is called with, and the runtime on it."""
    watched = Watched(tmp_path_factory.mktemp("echo"))
    build_echo(watched, known_calls())
    return watched


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Return a folder with the double of the driver."""
    watched = Watched(tmp_path_factory.mktemp("machine"))
    watched.build_driver()
    return watched


def build_echo(watched, calls):
    # Its functions have the library's name as their version, for those who ask for one.
    watched.build("echo.c", "libcuda.so.1", as_macro(calls), "-Wl,--default-symver", "-Wl,-Bsymbolic-functions")
    watched.build("runtime.c", "libcudart.so.12")
    watched.build("asks_next.c", "libasks_next.so")


@pytest.mark.parametrize("order", ["before", "after"])
def test_every_function_is_passed_on_whichever_way_a_program_gets_at_it(echo, order):
    echo.build("ways.c", "ways", as_macro(known_calls()), needs=("libcuda.so.1",))
    told = echo.run("ways", **{order: ("libasks_next.so",)})
    assert told == f"{13 * len(known_calls())} calls\n"


def test_every_function_is_passed_on_where_the_driver_is_loaded_later(echo):
    echo.build("ways.c", "loaded", as_macro(known_calls()), "-DLOADED")
    assert echo.run("loaded", after=("libasks_next.so",)) == f"{11 * len(known_calls())} calls\n"


def test_a_driver_that_is_closed_stays_for_who_found_it_among_all(echo):
    echo.build("reloads.c")
    echo.run("reloads")


def test_a_function_that_the_driver_lacks_stays_missing(tmp_path):
    watched = Watched(tmp_path)
    calls = [call for call in known_calls() if call[0] != "cuCtxCreate_v4"]
    build_echo(watched, calls)
    missing = '-DWITHOUT="cuCtxCreate_v4"'
    watched.build("ways.c", "ways", as_macro(calls), missing, needs=("libcuda.so.1",))
    watched.build("ways.c", "loaded", as_macro(calls), missing, "-DLOADED")
    for program in ("ways", "loaded"):
        watched.run(program, before=("libasks_next.so",))
        watched.run(program, after=("libasks_next.so",))


@pytest.mark.parametrize(
    "flags",
    [(), ("-DEVERYBODYS",), ("-Wl,--hash-style=sysv",)],
    ids=["its own", "everybody's", "its own, found by an older table"],
)
@pytest.mark.parametrize("order", ["before", "after"])
def test_another_library_that_stands_in_for_dlsym_sees_what_this_one_sees(echo, order, flags):
    echo.build("stands_in.c", "libstands_in.so", *flags)
    echo.build("seen_by_both.c", "seen", needs=("libcuda.so.1",))
    echo.build("seen_by_both.c", "seen_loaded", "-DLOADED")
    for program in ("seen", "seen_loaded"):
        echo.run(program, **{order: ("libstands_in.so",)})


@pytest.mark.parametrize("order", ["before", "after"])
def test_another_library_that_stands_in_by_its_names_sees_what_this_one_sees(echo, order):
    echo.build("stands_in.c", "libby_linker.so", "-DBY_LINKER")
    echo.build("seen_by_both.c", "seen", needs=("libcuda.so.1",))
    echo.run("seen", **{order: ("libby_linker.so",)})


# A machine with two devices and virtual memory, also on the host.
VARIABLES = {"FAKE_DEVICES": "2", "FAKE_VMM": "1", "FAKE_HOST_VMM": "1"}


@pytest.fixture(scope="module")
def counts(machine):
    """Return the program about what is counted."""
    return machine.build("counts.c", "counts", needs=("libcuda.so.1",))


@pytest.mark.parametrize("case", cases_of("counts.c"))
def test_what_is_counted_is_what_the_driver_has_given(machine, counts, case):
    machine.run(counts, case, **VARIABLES)


@pytest.fixture(scope="module")
def gives(echo):
    """Return the program about those that give way."""
    for name in ("libmember.so", "libmember_too.so"):
        echo.build("member.c", name)
    return echo.build("gives.c", "gives", as_macro(known_calls()), needs=("libmember.so", "libcuda.so.1"))


@pytest.mark.parametrize("case", cases_of("gives.c"))
def test_who_gives_way_is_asked_before_a_call_fails(echo, gives, case):
    echo.run(gives, case)


@pytest.fixture(scope="module")
def users(echo):
    """Build libraries that take memory."""
    echo.build("runtime.c", "libcudart-d0da41ae.so.11.0")
    echo.build("user.c", "libuser_driver.so", needs=("libcuda.so.1",))
    echo.build("user.c", "libuser_runtime.so", "-DRUNTIME", needs=("libcudart.so.12",))
    echo.build("user.c", "libuser_renamed.so", "-DRUNTIME", needs=("libcudart-d0da41ae.so.11.0",))
    echo.build("who.c", "who")
    echo.build("lives.c", "lives", needs=("libcuda.so.1",))


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize("case", cases_of("who.c"))
def test_memory_is_of_the_file_that_asked_for_it(echo, case):
    echo.run("who", case)


# How many reports a case prints, other than one.
REPORTS = {
    "it_takes_none": 0,
    "a_handler_of_signals_forks_in_the_middle_of_a_fork": 0,
    "a_handler_of_signals_ends_the_process": 0,
    "a_handler_of_signals_ends_the_process_where_memory_is_taken": 0,
    "another_thread_changes_what_the_report_leaves_out": 0,
}


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize("case", cases_of("lives.c"))
def test_processes_that_fork_or_become_others_or_end(echo, case):
    done = echo.start("lives", case, GPUPOOL_WATCH_REPORT="1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("gpupool: GPU memory of ") == REPORTS.get(case, 1), done.stderr


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize("value", ["1", "0", "", None])
def test_the_report_is_printed_where_it_is_asked_for(echo, value):
    done = echo.start("lives", "it_ends_with_memory", **({} if value is None else {"GPUPOOL_WATCH_REPORT": value}))
    name = re.escape(str(echo.folder / "lives"))
    expected = rf"""gpupool: GPU memory of {name} \(process \d+\)
device 0 {"now":>35} {"peak":>12}
  lives {"1.5 MiB":>36} {"6.5 MiB":>12}
"""
    assert re.fullmatch(expected if value == "1" else "", done.stderr), done.stderr


@pytest.mark.usefixtures("users")
def test_the_report_controls_no_terminal(echo):
    name = "li\nves\x1b[31m"
    shutil.copy(echo.folder / "lives", echo.folder / name)
    done = echo.start(name, "it_ends_with_memory", GPUPOOL_WATCH_REPORT="1")
    assert done.stderr.count("li?ves?[31m") == 2, done.stderr
    assert not re.search(r"[^\n -~]", done.stderr), done.stderr


@pytest.mark.usefixtures("users")
def test_a_program_whose_standard_error_nobody_reads_ends_as_it_would(echo):
    reading, writing = os.pipe()
    os.close(reading)
    done = echo.start("lives", "it_ends_with_memory", GPUPOOL_WATCH_REPORT="1", stderr=writing)
    os.close(writing)
    assert done.returncode == 0


@pytest.fixture
def watched(tmp_path):
    """Run a program with gpupool, and the library preloaded."""
    machine = Machine("cuda", tmp_path)

    def run(name, *arguments, folder=None, libraries=(), **variables):
        for library in libraries:
            machine.install(library)
        places = [machine.driver.parent, *([folder] if folder else [])]
        variables = {
            "FAKE_MEMORY_MIB": "1024",
            "LD_LIBRARY_PATH": ":".join(map(str, places)),
            "LD_PRELOAD": str(watch_library()),
            **variables,
        }
        done = machine.start(f"watch/{name}", *arguments, **variables)
        assert (done.returncode, done.stdout) == (0, ""), f"{done.stdout}{done.stderr}"
        return done.stderr

    return run


@pytest.mark.parametrize("virtual", ["0", "1"], ids=["plain", "virtual"])
@pytest.mark.parametrize("case", functions_of("watch/gives.py"))
def test_gpupool_gives_back_what_is_free_before_others_find_no_memory(watched, virtual, case):
    assert watched("gives.py", case, FAKE_VMM=virtual) == ""


@pytest.mark.parametrize("case", functions_of("watch/gives_pages.py"))
def test_gpupool_gives_back_pages_and_pools_before_others_find_no_memory(watched, case):
    assert watched("gives_pages.py", case, FAKE_VMM="1") == ""


@pytest.mark.parametrize("case", functions_of("watch/gives_handles.py"))
def test_gpupool_waits_for_no_library_that_is_in_the_middle_of_the_call(watched, case):
    assert watched("gives_handles.py", case, libraries=("cublas",)) == ""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    """Return a folder with the library that tells what the process has."""
    return build_nvml(tmp_path_factory.mktemp("nvml")).parent


@pytest.mark.parametrize("case", functions_of("watch/holders.py", "what_was_given_back_is_in_the_report"))
def test_gpupool_tells_who_holds_the_rest(watched, nvml, case):
    assert watched("holders.py", case, FAKE_VMM="1", FAKE_PROCESS_MIB="1000", folder=nvml) == ""


def test_the_report_has_what_gpupool_gave_back(watched, nvml):
    variables = {"FAKE_VMM": "1", "FAKE_PROCESS_MIB": "1024", "GPUPOOL_WATCH_REPORT": "1"}
    said = watched("holders.py", "what_was_given_back_is_in_the_report", folder=nvml, **variables)
    expected = r"""gpupool: GPU memory of .* \(process \d+\)
device 0 +now +peak
  gpupool +492\.0 MiB
  \S+ +500\.0 MiB +500\.0 MiB
  contexts and code +32\.0 MiB
  gpupool gave 3\d\d\.0 MiB back for calls that had failed, once
"""
    assert re.fullmatch(expected, said), said


def test_a_library_that_is_loaded_below_where_it_was_linked_for(echo):
    # No program may have addresses as high.
    echo.build("displaced.c", "libdisplaced.so", "-DLIBRARY", "-Wl,-Ttext-segment=0x4000000000000000")
    echo.build("displaced.c", needs=("libdisplaced.so", "libcuda.so.1"))
    echo.run("displaced")


def test_a_program_that_has_other_files_between_its_own_parts(echo):
    # Its data is above where libraries are, or they are not between, and there is nothing to see.
    echo.build("user.c", "libuser_driver.so", needs=("libcuda.so.1",))
    echo.build("finds.c", "libfinds.so")
    flags = ("-no-pie", "-mcmodel=large", "-Wl,--section-start=.far=0x7ffb00000000")
    echo.build("around.c", "around", *flags, needs=("libuser_driver.so", "libcuda.so.1"))
    echo.run("around")


def test_a_program_in_cpp(machine):
    machine.build("objects.cpp", "objects", "-std=c++17", needs=("libcuda.so.1",))
    machine.run("objects")


def test_a_program_in_rust(machine):
    machine.build("frames.rs", "frames", "-L", str(machine.folder))
    machine.run("frames")


@pytest.mark.parametrize("case", cases_of("alone.c"))
def test_without_a_driver_nothing_is_there(tmp_path, case):
    watched = Watched(tmp_path)
    watched.build("asks_next.c", "libasks_next.so")
    watched.build("alone.c")
    watched.run("alone", case, after=("libasks_next.so",))


@pytest.mark.parametrize("preloaded", ["", ":", " "])
def test_an_empty_list_of_libraries_to_preload_is_none(machine, counts, preloaded):
    done = machine.start(counts, "every_kind_of_allocation", LD_PRELOAD=preloaded)
    assert (done.returncode, done.stderr.split(": ")[-1]) == (
        1,
        "the program was not started with libgpupool_watch.so\n",
    )


def test_python_without_gpupool(machine):
    program = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0)); print(ctypes.CDLL(None).dlsym is not None)"
    told = machine.run(sys.executable, "-I", "-S", "-c", program, GPUPOOL_WATCH_REPORT="1")
    assert told == "0\nTrue\n"


@pytest.mark.parametrize("order", ["before", "after"])
def test_who_gives_memory_of_the_host_may_ask_for_functions_first(machine, counts, order):
    machine.build("mallocs.c", "libmallocs.so", "-fno-builtin")
    machine.run(counts, "many_threads_at_once", **VARIABLES, **{order: ("libmallocs.so",)})


@pytest.fixture(scope="module")
def at_fork(echo):
    """Compile a program whose library has handlers of forks, and that library."""
    echo.build("at_fork.c", "libat_fork.so", "-DLIBRARY")
    echo.build("at_fork.c", needs=("libat_fork.so", "libcuda.so.1"))


@pytest.mark.usefixtures("at_fork", "users")
@pytest.mark.parametrize("case", cases_of("at_fork.c"))
def test_a_library_that_began_before_has_handlers_of_forks(echo, case):
    echo.run("at_fork", case)


# They stand in for much of the C library, and ask for functions before a thread has variables of its own.
@pytest.mark.parametrize(
    "flags",
    ["-fsanitize=address -static-libasan", "-fsanitize=thread", "-fsanitize=thread -static-libtsan"],
)
@pytest.mark.usefixtures("at_fork")
def test_a_program_under_a_sanitizer(echo, flags):
    flags = flags.split()
    if not can_sanitize(*flags):
        pytest.skip(f"needs a compiler with {' '.join(flags)}")
    name = "sanitized" + "".join(flags).replace("=", "_")
    echo.build("at_fork.c", name, *flags, needs=("libat_fork.so", "libcuda.so.1"))
    echo.run(name, "a_handler_calls_the_driver")


@pytest.mark.parametrize("order", ["before", "after"])
def test_who_tells_of_loaded_files_may_ask_for_functions_first(machine, counts, order):
    machine.build("iterates.c", "libiterates.so")
    machine.run(counts, "many_threads_at_once", **VARIABLES, **{order: ("libiterates.so",)})


@pytest.mark.parametrize("case", functions_of("watch/asked.py"))
def test_gpupool_gives_what_it_and_its_neighbours_have(echo, tmp_path, case):
    table = echo.build("table.c", "libtable.so")
    for name in ("device", "neighbours"):
        (tmp_path / name).mkdir()
    variables = {
        "GPUPOOL_HOST_MEMORY": str(64 << 20),
        "GPUPOOL_HOST_SHARED": str(tmp_path / "device"),
        "GPUPOOL_NEIGHBOURS": str(tmp_path / "neighbours"),
        "GPUPOOL_NEIGHBOUR_DEADLINE_MS": "4000",
    }
    run_program("watch/asked.py", case, LD_PRELOAD=str(table), **variables)


def test_what_gives_memory_of_the_host_may_call_the_driver_with_its_lock(echo):
    echo.build("locked.c", "liblocked.so", "-DLIBRARY", needs=("libcuda.so.1",))
    echo.build("locked.c", needs=("liblocked.so", "libcuda.so.1"))
    echo.run("locked", GPUPOOL_WATCH_REPORT="0")
