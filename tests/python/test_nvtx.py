"""What a profiler is told through NVTX: the double of one, in processes of their own."""

from pathlib import Path

import pytest
from abi import build_nvtx
from forks import Machine, run_program


class Profiler:
    """The double of a profiler, and what it was told."""

    def __init__(self, folder: Path) -> None:
        self.library = build_nvtx(folder / "libprofiler.so")
        self.told = folder / "told.txt"

    @property
    def variables(self) -> dict[str, str | None]:
        """The environment of a process that it is to profile."""
        return {"GPUPOOL_NVTX": "1", "NVTX_INJECTION64_PATH": str(self.library), "NVTX_DOUBLE": str(self.told)}

    def run(self, what: str, **variables: str | None) -> str:
        """Have a program do something, and return what it printed."""
        return run_program("telling/nvtx_ranges.py", what, **{**self.variables, **variables})

    def lines(self, kind: str) -> list[str]:
        """Return what it was told of this kind."""
        all_ = self.told.read_text().splitlines()
        assert not [line for line in all_ if line.startswith("wrong")]
        return [line.removeprefix(f"{kind} ") for line in all_ if line.startswith(f"{kind} ")]

    def ranges(self) -> list[str]:
        """Return every range with those that it is in, in order; each began and ended on its thread."""
        open_: dict[str, list[str]] = {}
        found = []
        for line in self.told.read_text().splitlines():
            assert not line.startswith("wrong"), line
            kind, _, rest = line.partition(" ")
            if kind == "push":
                thread, _, name = rest.split(" ", 2)
                open_.setdefault(thread, []).append(name)
                found.append(" > ".join(open_[thread]))
            elif kind == "pop":
                open_[rest].pop()
        assert not any(open_.values())
        return found


@pytest.fixture
def profiler(tmp_path):
    """Return a profiler that programs find."""
    return Profiler(tmp_path)


def test_ranges_nest_in_a_domain_of_our_own(profiler):
    profiler.run("use_pools_and_handles")
    assert profiler.lines("domain") == ["gpupool"]
    ranges = profiler.ranges()
    assert ranges[0] == "create simulated handle"
    assert ranges[1:3] == ["grow memory pool", "grow memory pool > create pages"]
    assert "grow memory pool > move pages" in ranges
    assert "trim memory pool" in ranges
    assert "trim simulated handles" in ranges


def test_the_bytes_of_a_range_are_its_payload_so_that_its_name_stays_the_same(profiler):
    profiler.run("grow")
    payloads = [line.split(" ", 1)[1] for line in profiler.lines("push")]
    assert payloads == [f"{20 << 20} grow memory pool", f"{20 << 20} create pages"]


def test_a_range_ends_also_when_what_is_in_it_fails(profiler):
    profiler.run("fail")
    ranges = profiler.ranges()
    assert ranges[:4] == [
        "create simulated handle",
        "create simulated handle",
        "free memory for simulated handle",
        "free memory for simulated handle > create simulated handle",
    ]
    assert "free memory for a request > grow memory pool" in ranges
    assert ranges[-1] == "create own handle"


def test_a_wait_at_a_limit_is_a_range_also_when_it_is_in_vain(profiler):
    profiler.run("wait_at_a_limit")
    assert profiler.ranges() == ["create simulated handle", "wait for simulated handle", "wait for simulated handle"]


def test_a_hit_tells_nothing(profiler):
    profiler.run("hit")


def test_background_threads_have_names(profiler):
    profiler.run("make_a_handle_in_the_background")
    threads = profiler.lines("thread")
    assert [line.split(" ", 1)[1] for line in threads] == ["gpupool-warm-simulated"]
    assert [line.split(" ")[0] for line in profiler.lines("push")] == [threads[0].split(" ")[0]]


def test_streams_and_libraries_of_cuda_have_names(tmp_path):
    machine = Machine("cuda", tmp_path)
    machine.install("cublas")
    profiler = Profiler(tmp_path)
    told = machine.run("telling/nvtx_ranges.py", "load_a_library", **profiler.variables)
    assert profiler.lines("stream") == [f"{told.strip()} gpupool"]
    ranges = profiler.ranges()
    assert ranges[0] == "create cublas handle"
    assert "create cublas handle > load cublas" in ranges


@pytest.mark.parametrize("switch", [None, "", "0"])
def test_off_it_does_not_load_the_profiler(profiler, switch):
    profiler.run("go_on_without", GPUPOOL_NVTX=switch)
    assert not profiler.told.exists()


@pytest.mark.parametrize(
    "variables",
    [
        {"NVTX_INJECTION64_PATH": None},
        {"NVTX_INJECTION64_PATH": "/nowhere/libprofiler.so"},
        {"NVTX_INJECTION64_PATH": "libc.so.6"},
        {"NVTX_REFUSE": "1"},
    ],
    ids=["none", "not there", "no profiler's", "refuses"],
)
def test_without_a_usable_profiler_all_goes_on(profiler, variables):
    said = profiler.run("go_on_and_say_why", **variables)
    assert "INFO:gpupool.runtime:GPUPOOL_NVTX is set, but" in said
    assert not profiler.told.exists()


def test_threads_that_begin_at_once_attach_the_profiler_once(profiler):
    profiler.run("begin_at_once")
    assert profiler.lines("domain") == ["gpupool"]
    profiler.ranges()
