"""How the library of PyTorch's allocator is found, compiled and loaded, over stand-ins for PyTorch and for it."""

import ctypes
import logging
import os
import pwd
import stat
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import gpupool
import pytest
from gpupool._frameworks import plug
from gpupool._torch import compiler, library, place, pools
from own_memory import MIB
from running import run_program
from torch_installation import VERSION, TorchInstallation


@pytest.fixture
def machine(tmp_path, monkeypatch, nothing_left):
    """Return a machine where PyTorch was just imported, with a compiler, and where gpupool brought no library."""
    machine = TorchInstallation(tmp_path)
    monkeypatch.setattr(compiler, "SOURCES", machine.source)
    monkeypatch.setattr(compiler, "FOLDER", machine.shipped)
    for name in ("CUDA_PATH", "CUDA_ROOT", "CONDA_PREFIX", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_HOME", str(machine.cuda))
    monkeypatch.setenv("XDG_CACHE_HOME", str(machine.cache))
    monkeypatch.setitem(sys.modules, "torch", machine.torch_as_imported())
    for module, name in ((gpupool.torch, "_source"), (place, "_library")):
        monkeypatch.setattr(module, name, None)
    monkeypatch.setattr(place, "_is_taken", False)
    monkeypatch.setattr(place, "_has_pinned", False)
    yield machine
    gpupool.torch.disable()


@pytest.fixture
def compilations(monkeypatch):
    """Return a list that grows with each library that is compiled."""
    made, compile_library = [], compiler.compile_library
    monkeypatch.setattr(
        compiler, "compile_library", lambda *args, **named: (made.append(args), compile_library(*args, **named))
    )
    return made


def torch():
    return sys.modules["torch"]


def ship(machine, version="2.11", header="2.11"):
    """Put a library where those are that come with gpupool."""
    machine.write_interface(header)
    out = machine.shipped / f"allocator-{version}.so"
    compiler.compile_library(machine.torch, [machine.cuda / "include"], out)
    machine.write_interface()
    return out


def counted(path):
    """Return how often a library was installed and uninstalled."""
    count = ctypes.CDLL(str(path)).counted
    return count(0), count(1)


def in_threads(count, work):
    """Do it in so many threads at once."""
    together = threading.Barrier(count, timeout=60)
    with ThreadPoolExecutor(count) as executor:
        for each in [executor.submit(lambda: (together.wait(), work())) for _ in range(count)]:
            each.result()


def files_of_the_cache(machine):
    return sorted(machine.cache.rglob("*")) if machine.cache.exists() else []


def test_one_that_came_with_gpupool_is_loaded(machine, compilations):
    shipped = ship(machine)
    compilations.clear()
    assert library.load(torch()).path == shipped
    assert compilations == []
    assert not machine.cache.exists()


@pytest.mark.parametrize("version", ["2.11.0a0+git70d99e9", "2.11.0.dev20260101+cu130", "2.11.0rc1"])
def test_what_was_built_between_releases_has_one_made_for_itself(machine, version, compilations):
    shipped = ship(machine)
    compilations.clear()
    loaded = library.load(machine.torch_as_imported(version))
    assert loaded.path != shipped
    assert len(compilations) == 1


def test_one_for_another_version_is_never_installed(machine):
    shipped = ship(machine, header="2.12")
    gpupool.torch.enable()
    assert place._library.path != shipped
    assert counted(shipped) == (0, 0)
    # Nor is one that the user's own headers make so.
    machine.write_interface("2.12")
    with pytest.raises(library.NoLibrary, match=r"is for PyTorch 2\.12, not for 2\.11"):
        library.load(torch())


@pytest.mark.parametrize("broken", [b"", b"no library", None], ids=["empty", "text", "other functions"])
def test_one_that_cannot_be_loaded_is_passed_over(machine, broken):
    shipped = machine.shipped / "allocator-2.11.so"
    if broken is None:
        shipped.symlink_to(machine.torch / "lib" / "libc10_cuda.so")
    else:
        shipped.write_bytes(broken)
    assert machine.cache in library.load(torch()).path.parents


def test_without_one_it_is_compiled_once_and_kept(machine, compilations, caplog):
    caplog.set_level(logging.INFO, "gpupool")
    first = library.load(torch())
    (record,) = caplog.records
    assert record.name == "gpupool.library"
    assert f"allocator for PyTorch {VERSION}: compiled to {first.path} in " in record.message
    assert first.path.parent == machine.cache / "gpupool" / "torch"
    assert stat.S_IMODE(first.path.parent.stat().st_mode) == 0o700
    assert files_of_the_cache(machine)[-1] == first.path, "something else is left there"
    assert library.load(torch()).path == first.path
    assert len(compilations) == 1


def test_the_cache_tells_all_apart_that_could_differ(machine, monkeypatch):
    paths = {library.cache_path(torch())}
    paths.add(library.cache_path(machine.torch_as_imported("2.11.1+cu130")))
    torch().version.cuda = "12.8"
    paths.add(library.cache_path(torch()))
    torch()._C._GLIBCXX_USE_CXX11_ABI = False
    paths.add(library.cache_path(torch()))
    machine.write_interface("2.11", 1)
    paths.add(library.cache_path(torch()))
    (machine.source / "more.h").write_text("// More.")
    paths.add(library.cache_path(torch()))
    assert len(paths) == 6


def test_the_cache_is_where_its_specification_says(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert library.cache_path(torch()).parent == tmp_path / "home" / ".cache" / "gpupool" / "torch"


def test_a_user_without_a_home_is_told_what_to_set(machine, monkeypatch):
    def name_nobody(number):
        raise KeyError(number)

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", name_nobody)
    with pytest.raises(library.NoLibrary, match="has no home: set XDG_CACHE_HOME, or HOME") as refused:
        library.load(torch())
    assert str(refused.value).count("no home") == 1


def test_one_in_the_cache_that_is_broken_is_made_anew(machine):
    path = library.cache_path(torch())
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half of it")
    assert library.load(torch()).path == path
    assert path.stat().st_size > 1000


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may give a file to another user")
def test_one_that_another_user_has_put_into_the_cache_is_not_loaded(machine, compilations, monkeypatch):
    monkeypatch.setattr(library.cache, "_private", {})
    path = library.load(torch()).path
    os.chown(path, 65_000, -1)
    assert library.load(torch()).path == path
    assert len(compilations) == 2
    assert path.stat().st_uid == os.geteuid()
    # In a folder of another user nothing is safe.
    os.chown(path.parent, 65_000, -1)
    with pytest.warns(RuntimeWarning, match="belongs to user 65000"):
        own = library.load(torch()).path
    assert machine.cache not in own.parents
    assert own.parent.stat().st_mode & 0o777 == 0o700


def test_many_processes_may_compile_at_once(machine):
    in_threads(4, lambda: library.load(torch()))
    run_program("frameworks/torch_library.py", machine.torch.parent)
    assert [path.suffix for path in files_of_the_cache(machine) if path.is_file()] == [".so"]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"CXX": "no-such-compiler -x"}, "CXX=no-such-compiler -x is no command here: set CXX to a C"),
        ({"CXX": "false"}, r"false could not compile .*source \(exit code 1\): it said nothing"),
        ({"PATH": "/nonexistent"}, r"there is no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\): install one"),
        (
            {"CUDA_HOME": "/nonexistent"},
            r"CUDA 13's headers .*crt/host_config\.h are missing: set CUDA_HOME .*pip install",
        ),
        ({"XDG_CACHE_HOME": "/proc/nowhere"}, "/proc/nowhere/gpupool/torch cannot be written: .*: set XDG_CACHE_HOME"),
    ],
    ids=["CXX", "failing compiler", "no compiler", "no headers", "no cache"],
)
def test_what_keeps_it_from_being_made_is_told_with_what_mends_it(machine, monkeypatch, variables, message):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(compiler, "_USUAL", ())
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(gpupool.LibraryNotFound, match=message):
        gpupool.torch.enable()
    assert not place.is_taken()
    assert not any(path.is_file() for path in files_of_the_cache(machine))


def test_an_interface_that_changed_is_found_by_compiling(machine, monkeypatch):
    ship(machine, "2.10")
    header = machine.torch / "include" / "c10" / "cuda" / "CUDACachingAllocator.h"
    header.write_text("#error the interface is another")
    with pytest.raises(library.NoLibrary, match=r"could not compile .* error: #error the interface is another"):
        library.load(torch())
    header.unlink()
    with pytest.raises(library.NoLibrary, match=r"PyTorch's headers are not in .*: install PyTorch from"):
        library.load(torch())


def test_headers_are_of_pytorchs_cuda(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "_USUAL", ())
    machine.write_cuda(12)
    site = tmp_path / "site"
    wheel = site / "nvidia" / "cu13" / "include"
    (wheel / "crt").mkdir(parents=True)
    (wheel / "crt" / "host_config.h").touch()
    (wheel / "cuda_runtime_api.h").write_text("#define CUDART_VERSION 13010\n")
    monkeypatch.setattr(sys, "path", [str(site)])
    assert compiler.cuda_headers("13.0") == [wheel]
    assert compiler.cuda_headers("12.8") == [machine.cuda / "include"]
    with pytest.raises(compiler.CompilationFailed, match=r"pip install 'nvidia-cuda-runtime-cu11==11\.8\.\*'"):
        compiler.cuda_headers("11.8")
    (wheel / "crt" / "host_config.h").unlink()
    with pytest.raises(compiler.CompilationFailed, match=r"pip install 'nvidia-cuda-crt==13\.0\.\*'"):
        compiler.cuda_headers("13.0")


def test_a_pytorch_for_other_gpus_has_none(machine):
    torch().version.cuda = None
    with pytest.raises(library.NoLibrary, match="is not built for CUDA"):
        library.load(torch())


# The place.


def test_it_is_taken_at_any_time_and_given_back(machine):
    gpupool.torch.disable()
    for round in range(1, 3):
        gpupool.torch.enable()
        gpupool.torch.enable()
        assert place.is_taken()
        assert len(plug._sources) == 1
        assert counted(place._library.path) == (round, round - 1)
        gpupool.torch.disable()
        gpupool.torch.disable()
        assert not place.is_taken()
        assert plug._sources == []
        assert counted(place._library.path) == (round, round)


@pytest.mark.parametrize(("is_grouped", "value", "count"), [(True, "1", 1), (False, "1", 0), (True, "0", 0)])
def test_a_hook_that_was_attached_before_is_named(machine, monkeypatch, is_grouped, value, count):
    distributed = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: is_grouped)
    monkeypatch.setattr(sys.modules["torch"], "distributed", distributed, raising=False)
    monkeypatch.setenv("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gpupool.torch.enable()
    gpupool.torch.disable()
    assert ["NCCL's hook" in str(warning.message) for warning in caught] == [True] * count


def test_threads_take_it_once(machine):
    in_threads(8, gpupool.torch.enable)
    assert counted(place._library.path) == (1, 0)


def test_a_refusal_is_an_error_and_changes_nothing(machine):
    machine.write_interface(refuses=1)
    for _ in range(2):
        with pytest.raises(gpupool.Error, match="could not become PyTorch's allocator: it is refused"):
            gpupool.torch.enable()
    assert not place.is_taken()
    assert plug._sources == []


@pytest.fixture
def torch_cpu(tmp_path):
    """Load a library that has the functions by which PyTorch's allocator of pinned memory is set."""
    source, path = tmp_path / "cpu.cpp", tmp_path / "libtorch_cpu.so"
    source.write_text(
        "namespace c10 { enum class DeviceType : signed char {}; }\n"
        "namespace at {\n"
        "struct HostAllocator;\n"
        "HostAllocator *getHostAllocator(c10::DeviceType) { return nullptr; }\n"
        "void setHostAllocator(c10::DeviceType, HostAllocator *, unsigned char) {}\n"
        "}\n"
    )
    options = ("-shared", "-fPIC", "-Wl,-soname,libtorch_cpu.so")
    subprocess.run([*compiler.find_compiler(), *options, str(source), "-o", str(path)], check=True)
    ctypes.CDLL(str(path))


def counted_pinned(path):
    count = ctypes.CDLL(str(path)).counted
    return count(2), count(3)


def test_pinned_memory_is_taken_on_request_and_given_back(machine, torch_cpu):
    gpupool.torch.enable()
    path = place._library.path
    assert counted_pinned(path) == (0, 0)
    for round in range(1, 3):
        gpupool.torch.enable(pinned=True)
        gpupool.torch.enable(pinned=True)
        gpupool.torch.enable()
        assert (counted(path), counted_pinned(path)) == ((round, round - 1), (round, round - 1))
        gpupool.torch.disable()
        gpupool.torch.disable()
        assert (counted(path), counted_pinned(path)) == ((round, round), (round, round))
    gpupool.torch.enable(allocator=False, pinned=True)
    assert not gpupool.torch.is_enabled()
    assert (counted(path), counted_pinned(path)) == ((2, 2), (3, 2))
    gpupool.torch.enable(pinned=False)
    assert gpupool.torch.is_enabled()
    assert (counted(path), counted_pinned(path)) == ((3, 2), (3, 3))


def test_where_pytorch_cannot_set_its_pinned_memory_that_is_told_and_nothing_changes(machine, monkeypatch):
    monkeypatch.setattr(library, "_TORCH_CPU", "libtorch_cpu_of_another.so")
    with pytest.raises(gpupool.LibraryNotFound, match=r"by at::setHostAllocator of libtorch_cpu_of_.*: .*pinned=True"):
        gpupool.torch.enable(pinned=True)
    assert not place.is_taken()
    assert plug._sources == []
    assert counted(place._library.path) == (0, 0)


def test_without_a_library_pinned_memory_is_refused_and_nothing_changes(machine, monkeypatch, torch_cpu):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(gpupool.LibraryNotFound, match=r"pinned memory cannot come from gpupool: .* no library"):
        gpupool.torch.enable(pinned=True)
    assert not place.is_taken()


def test_where_the_allocator_is_refused_pinned_memory_goes_back(machine, torch_cpu):
    torch().backend = "pluggable"
    with pytest.raises(gpupool.Error, match="allocator was changed already"):
        gpupool.torch.enable(pinned=True)
    assert counted_pinned(place._library.path) == (1, 1)
    assert plug._sources == []


def test_a_place_that_cannot_be_given_back_is_kept(machine, monkeypatch):
    gpupool.torch.enable()

    def refuse(*_):
        raise gpupool.Error("another has it")

    with monkeypatch.context() as patch:
        patch.setattr(place._library, "call", refuse)
        with pytest.raises(gpupool.Error, match="another has it"):
            gpupool.torch.disable()
    assert place.is_taken()
    assert len(plug._sources) == 1


def test_a_pool_of_ours_is_one_of_pytorchs(machine):
    gpupool.torch.enable()
    pool = gpupool.MemPool(device=1)
    made = gpupool.torch.mem_pool(pool)
    assert isinstance(made, torch().cuda.MemPool)
    number = ctypes.CDLL(str(place._library.path)).adopted_number
    number.restype = ctypes.c_ulonglong
    assert [number(which) for which in range(5)] == [1, *made.id, *pool.id]
    assert made.gpupool_pool is pool
    assert torch().calls == [("device", 1)]
    with pytest.raises(gpupool.InvalidValue, match=r"give use_on_oom and no_split to gpupool\.MemPool"):
        gpupool.torch.mem_pool(pool, no_split=True)
    own = gpupool.torch.mem_pool(device=1, use_on_oom=True)
    assert (type(own), own.use_on_oom, own.allocator) == (torch().cuda.MemPool, True, None)


def test_a_block_is_gpupools_own(machine):
    assert not gpupool.torch.is_enabled()
    gpupool.torch.enable()
    assert gpupool.torch.is_enabled()
    pool = gpupool.MemPool()
    with gpupool.torch.using(pool):
        buffer = gpupool.empty(MIB)
        with gpupool.torch.using() as inside:
            assert inside is None
            inner = gpupool.empty(MIB)
    with gpupool.torch.using(pool.token()):
        other = gpupool.empty(MIB)
    assert [each.pool_id for each in (buffer, inner, other)] == [pool.id] * 3
    assert pools.blocks() == 0
    gpupool.torch.disable()
    assert not gpupool.torch.is_enabled()


def test_a_block_from_before_ends_where_it_began(machine):
    pool = gpupool.MemPool()
    with gpupool.torch.using(pool):
        inside = torch().local.pool
        gpupool.torch.enable()
    assert torch().local.pool is None
    assert pools._idle[pool.device, pool.id] == [inside]
    gpupool.torch.empty_cache()


def test_the_report_says_whose_allocator_it_is(machine):
    gpupool.torch.enable()
    told = {framework.name: framework for framework in gpupool.info().frameworks}["torch"]
    assert (told.allocator, told.uses_gpupool) == ("gpupool", True)


def test_the_library_is_made_of_all_files_beside_it():
    names = [path.name for path in compiler.sources()]
    assert names[-1] == "gpupool.h"
    assert os.path.isfile(compiler.TABLE / "gpupool.h")
