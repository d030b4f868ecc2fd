"""How the module for RMM is found: shipped, kept from before, compiled; and what is said where there is none."""

import importlib
import importlib.util
import shutil
from types import SimpleNamespace

import gpupool
import pytest
from gpupool._rmm import commands, library
from gpupool._torch import compiler
from rmm_module import cache_of, compiled_module

rmm = pytest.importorskip("rmm")
shipped = library._shipped


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    """Have an empty cache, and no module that came with gpupool."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_shipped", lambda *_: None)
    return tmp_path / "cache" / "gpupool" / "rmm"


@pytest.fixture
def able():
    """Skip the test where nothing can be compiled."""
    try:
        compiler.find_compiler()
        library._headers()
    except (compiler.CompilationFailed, library.NoLibrary) as reason:
        pytest.skip(f"needs what compiles: {reason}")
    pytest.importorskip("Cython")


def as_version(version):
    return SimpleNamespace(__version__=version, __file__=rmm.__file__)


@pytest.fixture
def compiled(able, monkeypatch):
    """Have a cache with the module alone that tests have compiled, and return that."""
    module = compiled_module(rmm)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_of(rmm)))
    return module


def test_a_module_is_compiled_once_and_kept(compiled, monkeypatch):
    assert ".".join(map(str, compiled.version())) == ".".join(rmm.__version__.split(".")[:2])
    (path,) = (cache_of(rmm) / "gpupool" / "rmm").iterdir()
    assert path == library.cache_path(rmm)
    monkeypatch.setattr(compiler, "run", lambda *_: pytest.fail("compiled again"))
    assert library.load(rmm).MemoryResource(0).allocate(0) == 0


def test_a_module_for_another_version_is_refused(compiled, tmp_path):
    other = shutil.copy(library.cache_path(rmm), tmp_path / library.cache_path(as_version("99.12.00")).name)
    with pytest.raises(library.NoLibrary, match=r"is for RMM \d+\.\d+, not for 99\.12"):
        library._import(other, (99, 12))


def test_what_came_with_gpupool_is_for_releases_of_its_version(monkeypatch, tmp_path):
    monkeypatch.setattr(commands, "SOURCE", tmp_path / "resource.pyx")
    assert shipped(as_version("26.08.00"), (26, 8)) is None
    path = tmp_path / "resource-26.8.abi3.so"
    path.touch()
    assert shipped(as_version("26.08.00"), (26, 8)) == path
    assert shipped(as_version("26.08.01+cuda13"), (26, 8)) == path
    assert shipped(as_version("26.08.00a12"), (26, 8)) is None
    assert shipped(as_version("26.10.00"), (26, 10)) is None


def test_a_file_that_is_no_module_is_refused(empty_cache, monkeypatch):
    path = library.cache_path(rmm)
    path.parent.mkdir(parents=True)
    path.write_text("no module")
    monkeypatch.setattr(library, "_compiled", lambda *_: None)
    with pytest.raises(library.NoLibrary, match="cannot be used"):
        library.load(rmm)


def test_what_is_missing_is_said(monkeypatch):
    with pytest.raises(library.NoLibrary, match=r"RMM 26\.04\.00 hold .*: update to RMM 26\.06 or later"):
        library.load(as_version("26.04.00"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(library.NoLibrary, match="CXX=no-such-compiler is no command here"):
        library.load(rmm)


@pytest.mark.usefixtures("able")
def test_without_cython_that_is_said(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "Cython" else find(name, *a))
    with pytest.raises(library.NoLibrary, match="pip install cython"):
        library.load(rmm)


@pytest.mark.usefixtures("able")
def test_a_cache_that_cannot_be_written_is_said(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(library.NoLibrary, match="set XDG_CACHE_HOME"):
        library.load(rmm)


@pytest.mark.usefixtures("able")
def test_what_does_not_compile_is_said(monkeypatch, tmp_path):
    wrong = tmp_path / "resource.pyx"
    wrong.write_text("from rmm.librmm.memory_resource cimport no_such_class\n")
    monkeypatch.setattr(commands, "SOURCE", wrong)
    with pytest.raises(library.NoLibrary, match="could not compile"):
        library.load(rmm)


def test_each_version_and_source_has_a_file_of_its_own(monkeypatch, tmp_path):
    paths = {library.cache_path(rmm), library.cache_path(as_version("26.12.00"))}
    source = tmp_path / "resource.pyx"
    source.write_text("# another")
    monkeypatch.setattr(commands, "SOURCE", source)
    paths.add(library.cache_path(rmm))
    assert len(paths) == 3


def test_without_a_module_requests_run_python_and_a_warning_says_so_once(monkeypatch, recwarn):
    def load(_rmm):
        raise library.NoLibrary("there is no C++ compiler")

    monkeypatch.setattr(library, "load", load)
    monkeypatch.setattr(gpupool.rmm, "_module", None)
    with pytest.warns(RuntimeWarning, match=r"no resource in C\+\+ for RMM .*: there is no C\+\+ compiler") as told:
        resource = gpupool.rmm.resource()
    assert told[0].filename == __file__
    assert isinstance(resource, rmm.mr.CallbackMemoryResource)
    assert isinstance(gpupool.rmm.pinned_resource(), rmm.mr.CallbackMemoryResource)
    assert isinstance(gpupool.rmm.resource(0), rmm.mr.CallbackMemoryResource)
