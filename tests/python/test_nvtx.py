"""What a profiler is told through NVTX: the double of one, in processes of their own."""

from collections.abc import Callable
from pathlib import Path

import pytest
from abi import build_nvtx
from machines import Machine
from programs import HITS

SETUP = """
import gpupool, os, threading
from gpupool import _native

def refused(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except gpupool.Error:
        return
    raise AssertionError("it was not refused")
"""


class Profiler:
    """The double of a profiler, and what it was told."""

    def __init__(self, folder: Path, run_python: Callable) -> None:
        self.library = build_nvtx(folder / "libprofiler.so")
        self.told = folder / "told.txt"
        self.run_python = run_python

    @property
    def variables(self) -> dict[str, str | None]:
        return {"GPUPOOL_NVTX": "1", "NVTX_INJECTION64_PATH": str(self.library), "NVTX_DOUBLE": str(self.told)}

    def run(self, code: str, **variables: str | None) -> str:
        """What code prints that ends as it should and complains of nothing."""
        done = self.run_python(SETUP + code, **{**self.variables, **variables})
        assert (done.stderr, done.returncode) == ("", 0)
        return done.stdout

    def lines(self, kind: str) -> list[str]:
        all_ = self.told.read_text().splitlines()
        assert not [line for line in all_ if line.startswith("wrong")]
        return [line.removeprefix(f"{kind} ") for line in all_ if line.startswith(f"{kind} ")]

    def ranges(self) -> list[str]:
        """Every range with those that it is in, in order; each began and ended on its thread."""
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
def profiler(tmp_path, run_python):
    return Profiler(tmp_path, run_python)


def test_ranges_nest_in_a_domain_of_our_own(profiler):
    profiler.run(
        """
gpupool.host.handle()
pool = gpupool.MemPool()
with gpupool.use_mem_pool(pool):
    one, two = gpupool.empty(20 << 20), gpupool.empty(20 << 20)
    kept = gpupool.empty(20 << 20)
    del one
    gpupool.empty(30 << 20)
del two
pool.trim()
gpupool.host.lease().release()
gpupool.host.trim()
"""
    )
    assert profiler.lines("domain") == ["gpupool"]
    ranges = profiler.ranges()
    assert ranges[0] == "create host handle"
    assert ranges[1:3] == ["grow memory pool", "grow memory pool > create pages"]
    assert "grow memory pool > move pages" in ranges
    assert "trim memory pool" in ranges
    assert "trim host handles" in ranges


def test_the_bytes_of_a_range_are_its_payload_so_that_its_name_stays_the_same(profiler):
    profiler.run("kept = gpupool.empty(20 << 20)")
    payloads = [line.split(" ", 1)[1] for line in profiler.lines("push")]
    assert payloads == [f"{20 << 20} grow memory pool", f"{20 << 20} create pages"]


def test_a_range_ends_also_when_what_is_in_it_fails(profiler):
    profiler.run(
        """
_native.host_inject("HandleCreate", "other", 0, 1)
refused(gpupool.host.handle)
_native.host_inject("HandleCreate", "out_of_memory", 0, 2)
refused(gpupool.host.handle)
for call in ("ExtentCreate", "MemoryMap"):
    _native.host_inject(call, "other", 0, 1)
    refused(gpupool.empty, 20 << 20)
pool = gpupool.MemPool(limit=8 << 20)
with gpupool.use_mem_pool(pool):
    refused(gpupool.empty, 20 << 20)
def no_handle():
    raise RuntimeError("no handle")
refused(gpupool.HandlePool("own", no_handle, lambda handle: None).handle)
"""
    )
    ranges = profiler.ranges()
    assert ranges[:4] == [
        "create host handle",
        "create host handle",
        "free memory for host handle",
        "free memory for host handle > create host handle",
    ]
    assert "free memory for a request > grow memory pool" in ranges
    assert ranges[-1] == "create own handle"


def test_a_wait_at_a_limit_is_a_range_also_when_it_is_in_vain(profiler):
    profiler.run(
        """
gpupool.host.limit = 1
with gpupool.host.lease():
    refused(gpupool.host.lease, timeout=0.0)
    got = threading.Thread(target=lambda: gpupool.host.lease(timeout=60.0).release())
    got.start()
    while gpupool.host.stats().waits < 2:
        pass
got.join()
"""
    )
    assert profiler.ranges() == ["create host handle", "wait for host handle", "wait for host handle"]


def test_a_hit_tells_nothing(profiler):
    profiler.run(
        HITS
        + """
hits()
before = open(os.environ["NVTX_DOUBLE"]).read()
hits()
assert open(os.environ["NVTX_DOUBLE"]).read() == before
"""
    )


def test_background_threads_have_names(profiler):
    profiler.run(
        """
gpupool.host.warm(1, background=True)
while gpupool.host.stats().idle < 1:
    pass
"""
    )
    threads = profiler.lines("thread")
    assert [line.split(" ", 1)[1] for line in threads] == ["gpupool-warm-host"]
    assert [line.split(" ")[0] for line in profiler.lines("push")] == [threads[0].split(" ")[0]]


def test_streams_and_libraries_of_cuda_have_names(tmp_path, run_bare_python):
    machine = Machine("cuda", tmp_path, run_bare_python)
    machine.build()
    machine.install("cublas")
    profiler = Profiler(tmp_path, run_bare_python)
    code = "stream = gpupool.Stream(); print(stream.ptr); gpupool.cublas.handle(stream)"
    told = machine.run(code, **profiler.variables)
    assert profiler.lines("stream") == [f"{told.strip()} gpupool"]
    ranges = profiler.ranges()
    assert ranges[0] == "create cublas handle"
    assert "create cublas handle > load cublas" in ranges


@pytest.mark.parametrize("switch", [None, "", "0"])
def test_off_it_does_not_load_the_profiler(profiler, switch):
    mapped = profiler.run(
        """
gpupool.host.handle()
kept = gpupool.empty(1 << 20)
print("libprofiler" in open("/proc/self/maps").read())
""",
        GPUPOOL_NVTX=switch,
    )
    assert mapped == "False\n"
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
    code = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
gpupool.host.handle()
kept = gpupool.empty(1 << 20)
"""
    said = profiler.run(code, **variables)
    assert "INFO:gpupool.runtime:GPUPOOL_NVTX is set, but" in said
    assert not profiler.told.exists()


def test_threads_that_begin_at_once_attach_the_profiler_once(profiler):
    profiler.run(
        """
together = threading.Barrier(8)
def work():
    together.wait()
    gpupool.host.handle()
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    )
    assert profiler.lines("domain") == ["gpupool"]
    profiler.ranges()
