"""How libraries are found, with ABI doubles of them and one real one."""

import os
import re
import sys
from pathlib import Path

import gpupool
import pytest
from abi import LIBRARIES, OPTIONAL, build_library, build_wheel

PATH = "import gpupool; print(gpupool.{name}.path)"


@pytest.fixture
def site_packages(tmp_path):
    """An empty site-packages, for PYTHONPATH."""
    folder = tmp_path / "lib" / "python3" / "site-packages"
    folder.mkdir(parents=True)
    return folder


def found(run_bare_python, name, before="", **variables):
    """The path of the library that a new process finds."""
    done = run_bare_python(before + PATH.format(name=name), **variables)
    assert done.stderr == ""
    return Path(done.stdout.strip())


def refusal(run_bare_python, name, **variables):
    """The error of a new process that finds no such library."""
    code = f"import gpupool\ntry: gpupool.{name}.path\nexcept gpupool.LibraryNotFound as error: print(error)"
    done = run_bare_python(code, **variables)
    assert done.stderr == ""
    return done.stdout


def test_a_wheels_library_is_found(run_bare_python, site_packages):
    file = build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12", version=(12, 6, 3))
    assert found(run_bare_python, "cusparse", PYTHONPATH=str(site_packages)) == file
    code = "import gpupool; print(gpupool.cusparse.version, gpupool.cusparse.available)"
    # Found, but no handle can be made without a GPU.
    assert run_bare_python(code, PYTHONPATH=str(site_packages)).stdout == "(12, 6, 3) False\n"


def test_without_a_driver_the_newest_cuda_comes_first(run_bare_python, site_packages):
    build_library("cusparse", site_packages / "nvidia/cusparse/lib/libcusparse.so.12")
    newest = build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    assert found(run_bare_python, "cusparse", PYTHONPATH=str(site_packages)) == newest


def test_the_cuda_in_use_comes_before_the_newest(run_bare_python, site_packages):
    cublas = build_library("cublas", site_packages / "nvidia/cublas/lib/libcublas.so.12")
    in_use = build_library("cusparse", site_packages / "nvidia/cusparse/lib/libcusparse.so.12")
    build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    loaded = f"import ctypes; ctypes.CDLL({str(cublas)!r})\n"
    assert found(run_bare_python, "cusparse", loaded, PYTHONPATH=str(site_packages)) == in_use


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_library_is_found_where_its_wheel_puts_it(run_bare_python, site_packages, name):
    file = build_wheel(name, site_packages)
    assert found(run_bare_python, name, PYTHONPATH=str(site_packages)) == file
    code = f"import gpupool; print(gpupool.{name}.version, gpupool.{name}.available)"
    assert run_bare_python(code, PYTHONPATH=str(site_packages)).stdout == "(1, 2, 3) False\n"


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_symbol_that_a_library_lacks_is_told(run_bare_python, site_packages, name):
    library = LIBRARIES[name]
    symbols = {"CREATE": library.create, "DESTROY": library.destroy, **library.symbols}
    for kind, symbol in symbols.items():
        if kind in OPTIONAL:
            continue
        file = build_library(name, site_packages / library.file, without=kind)
        message = refusal(run_bare_python, name, PYTHONPATH=str(site_packages))
        assert f"tried {file} (loaded): lacks the symbol {symbol}, so it is too old" in message


def test_a_copy_that_is_loaded_is_taken_and_no_other_loaded(run_bare_python, site_packages, tmp_path):
    build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    theirs = build_library("cusparse", tmp_path / "elsewhere/libcusparse.so.12")
    code = f"""
import ctypes, gpupool, re
ctypes.CDLL({str(theirs)!r})
gpupool.cusparse.path
print(set(re.findall(r"/\\S*libcusparse\\S*", open("/proc/self/maps").read())))
"""
    assert run_bare_python(code, PYTHONPATH=str(site_packages)).stdout == f"{ {str(theirs)} }\n"


def test_a_loaded_copy_that_is_too_old_is_an_error(run_bare_python, site_packages, tmp_path):
    build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    old = build_library("cusparse", tmp_path / "old/libcusparse.so.12", without="SET_STREAM")
    code = f"""
import ctypes, gpupool
ctypes.CDLL({str(old)!r})
try: gpupool.cusparse.path
except gpupool.LibraryNotFound as error: print(error)
"""
    done = run_bare_python(code, PYTHONPATH=str(site_packages))
    assert f"{old} (already loaded): lacks the symbol cusparseSetStream, so it is too old" in done.stdout


def test_the_environment_names_a_file_or_a_folder(run_bare_python, site_packages, tmp_path):
    build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    file = build_library("cusparse", tmp_path / "mine/libcusparse.so.12")
    renamed = build_library("cusparse", tmp_path / "mine/my-cusparse.so")
    for wanted, expected in [(file, file), (file.parent, file), (renamed, renamed)]:
        variables = {"PYTHONPATH": str(site_packages), "GPUPOOL_CUSPARSE_PATH": str(wanted)}
        assert found(run_bare_python, "cusparse", **variables) == expected


def test_a_place_that_the_environment_names_is_the_only_one_tried(run_bare_python, site_packages):
    build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    variables = {"PYTHONPATH": str(site_packages), "GPUPOOL_CUSPARSE_PATH": "/nowhere/libcusparse.so.12"}
    message = refusal(run_bare_python, "cusparse", **variables)
    assert message.count("tried") == 1
    assert "tried /nowhere/libcusparse.so.12 (from GPUPOOL_CUSPARSE_PATH): no such file" in message


def test_a_wheel_comes_before_a_newer_cuda_of_the_system(run_bare_python, site_packages, tmp_path):
    wheel = build_library("cusparse", site_packages / "nvidia/cusparse/lib/libcusparse.so.12")
    build_library("cusparse", tmp_path / "cuda-13/lib64/libcusparse.so.12")
    variables = {"PYTHONPATH": str(site_packages), "CUDA_HOME": str(tmp_path / "cuda-13")}
    assert found(run_bare_python, "cusparse", **variables) == wheel


def test_conda_and_the_toolkit_are_looked_at(run_bare_python, tmp_path):
    for variable, folder in [("CONDA_PREFIX", "lib"), ("CUDA_HOME", "lib64"), ("CUDA_PATH", "lib")]:
        root = tmp_path / variable
        (root / "lib/python3.11/site-packages").mkdir(parents=True)
        file = build_library("cusparse", root / folder / "libcusparse.so.12")
        assert found(run_bare_python, "cusparse", **{variable: str(root)}) == file


def test_the_linkers_path_is_looked_at_but_never_another_major_version(run_bare_python, tmp_path):
    for name in ("libcublas.so", "libcublas.so.11", "libcublas.so.14"):
        build_library("cublas", tmp_path / name)
    message = refusal(run_bare_python, "cublas", LD_LIBRARY_PATH=str(tmp_path))
    assert not re.search(r"libcublas\.so(\.11|\.14)?: ", message)
    file = build_library("cublas", tmp_path / "libcublas.so.12")
    assert found(run_bare_python, "cublas", LD_LIBRARY_PATH=str(tmp_path)) == file


def test_what_a_library_needs_is_loaded_first(run_bare_python, site_packages):
    folder = site_packages / "nvidia/cu13/lib"
    cublas = build_library("cublas", folder / "libcublas.so.13")
    cudss = build_library("cudss", folder / "libcudss.so.0", needs=("cublasGetProperty", cublas))
    assert found(run_bare_python, "cudss", PYTHONPATH=str(site_packages)) == cudss


def test_what_it_needs_and_cannot_have_is_named(run_bare_python, site_packages, tmp_path):
    cublas = build_library("cublas", tmp_path / "libcublas.so.13")
    build_library("cudss", site_packages / "nvidia/cu13/lib/libcudss.so.0", needs=("cublasGetProperty", cublas))
    message = refusal(run_bare_python, "cudss", PYTHONPATH=str(site_packages))
    assert "nvidia/cu13/lib/libcudss.so.0: libcublas.so.13: cannot open shared object file" in message


def test_a_missing_library_lists_every_place_and_the_command_that_brings_it(run_bare_python, site_packages):
    message = refusal(run_bare_python, "cusparse", PYTHONPATH=str(site_packages))
    assert message.startswith("cusparse was not found.")
    for place in ("nvidia/cu13/lib", "nvidia/cusparse/lib"):
        assert f"tried {site_packages}/{place}/libcusparse.so.12: no such file" in message
    assert "tried libcusparse.so.12: libcusparse.so.12: cannot open shared object file" in message
    assert "Install it with: pip install nvidia-cusparse\n" in message
    assert "GPUPOOL_CUSPARSE_PATH" in message


def test_a_file_that_is_no_library_is_passed_over(run_bare_python, site_packages):
    broken = site_packages / "nvidia/cu13/lib/libcusparse.so.12"
    broken.parent.mkdir(parents=True)
    broken.write_text("not a library")
    file = build_library("cusparse", site_packages / "nvidia/cusparse/lib/libcusparse.so.12")
    assert found(run_bare_python, "cusparse", PYTHONPATH=str(site_packages)) == file
    file.unlink()
    assert f"tried {broken}: " in refusal(run_bare_python, "cusparse", PYTHONPATH=str(site_packages))


def test_a_library_installed_later_is_found(run_bare_python, site_packages):
    template = build_library("cusparse", site_packages / "template.so")
    code = f"""
import gpupool, pathlib, shutil
try: gpupool.cusparse.path
except gpupool.LibraryNotFound: print("missing")
target = pathlib.Path({str(site_packages)!r}) / "nvidia/cu13/lib/libcusparse.so.12"
target.parent.mkdir(parents=True)
shutil.copy({str(template)!r}, target)
print(gpupool.cusparse.path == str(target))
"""
    assert run_bare_python(code, PYTHONPATH=str(site_packages)).stdout == "missing\nTrue\n"


def origins(run_bare_python, *names, before="", **variables):
    """How a new process says that it found libraries, asked in this order."""
    code = f"{before}import gpupool; print(*[getattr(gpupool, name).origin for name in {names}])"
    done = run_bare_python(code, **variables)
    assert done.stderr == ""
    return done.stdout.split()


def test_how_a_library_was_found_is_told(run_bare_python, site_packages, tmp_path):
    def built(place):
        return build_library("cusparse", tmp_path / place / "libcusparse.so.12")

    file = build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    wheel = {"PYTHONPATH": str(site_packages)}
    conda = tmp_path / "conda"
    (conda / "lib/python3.11/site-packages").mkdir(parents=True)
    loaded = f"import ctypes; ctypes.CDLL({str(file)!r})\n"
    for expected, variables in {
        "wheel": wheel,
        "environment": {"GPUPOOL_CUSPARSE_PATH": str(built("mine").parent), **wheel},
        "conda": {"CONDA_PREFIX": str(built("conda/lib").parents[1])},
        "toolkit": {"CUDA_HOME": str(built("cuda/lib64").parents[1])},
        "system": {"LD_LIBRARY_PATH": str(built("linker").parent)},
    }.items():
        assert origins(run_bare_python, "cusparse", **variables) == [expected]
    assert origins(run_bare_python, "cusparse", before=loaded, **wheel) == ["process"]


def test_what_another_library_needed_was_found_where_it_was_loaded_from(run_bare_python, site_packages):
    folder = site_packages / "nvidia/cu13/lib"
    cublas = build_library("cublas", folder / "libcublas.so.13")
    build_library("cudss", folder / "libcudss.so.0", needs=("cublasGetProperty", cublas))
    assert origins(run_bare_python, "cudss", "cublas", PYTHONPATH=str(site_packages)) == ["wheel", "wheel"]


def test_a_pool_tells_whether_its_library_is_loaded_and_loads_none_for_it(run_bare_python, site_packages):
    build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    code = """
import gpupool
pool = gpupool.HandlePool("own", lambda: 1, lambda handle: None)
print(gpupool.cusparse.loaded, gpupool.cusparse.loaded, gpupool.cusparse.version, gpupool.cusparse.loaded)
print(gpupool.cublas.loaded, gpupool.cublas.available, gpupool.cublas.loaded, gpupool.host.loaded)
print(pool.loaded, pool.origin, gpupool.host.origin)
"""
    done = run_bare_python(code, PYTHONPATH=str(site_packages))
    assert done.stdout == "False False (1, 2, 3) True\nFalse False False True\nTrue None None\n"


def test_a_library_that_is_missing_is_told_from_one_that_cannot_be_used(run_bare_python, site_packages, tmp_path):
    code = """
import gpupool
try: gpupool.cusparse.path
except gpupool.LibraryNotFound as error: print(error.is_present, error.library, len(error.tried) > 0, error.remedy)
"""

    def told(**variables):
        return run_bare_python(code, PYTHONPATH=str(site_packages), **variables).stdout

    brings = "Install it with: pip install nvidia-cusparse\nor set GPUPOOL_CUSPARSE_PATH to its file or folder\n"
    assert told() == f"False cusparse True {brings}"
    broken = tmp_path / "linker/libcusparse.so.12"
    broken.parent.mkdir()
    broken.write_text("not a library")
    assert told(LD_LIBRARY_PATH=str(broken.parent)) == f"True cusparse True {brings}"
    build_library("cusparse", broken, without="SET_STREAM")
    assert told(LD_LIBRARY_PATH=str(broken.parent)) == f"True cusparse True {brings}"


def real_cudnn():
    """The file of the real cuDNN in this environment, if there is one."""
    files = [file for root in sys.path for file in Path(root).glob("nvidia/cudnn*/lib/libcudnn.so.9")]
    if not files:
        pytest.skip("needs a cuDNN wheel")
    return files[0]


def test_the_real_cudnn_loads_and_tells_its_version():
    file = real_cudnn()
    assert Path(gpupool.cudnn.path) == file.resolve()
    assert gpupool.cudnn.version >= (9, 0, 0)


def test_simulated_devices_give_no_handle_of_a_real_library():
    real_cudnn()
    assert not gpupool.cudnn.available
    with pytest.raises(gpupool.RuntimeUnavailable, match="GPUPOOL_RUNTIME chose host"):
        gpupool.cudnn.handle()


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")
def test_without_a_gpu_the_error_says_why(run_bare_python):
    code = "import gpupool\ntry: gpupool.cudnn.handle()\nexcept gpupool.RuntimeUnavailable as error: print(error)"
    message = run_bare_python(code, GPUPOOL_RUNTIME=None).stdout
    assert message.startswith("the cuda runtime is unavailable: no NVIDIA driver was found (libcuda.so.1: ")
    assert "gpupool simulates devices here (runtime host)" in message
    message = run_bare_python(code, GPUPOOL_RUNTIME="cuda").stdout
    assert message.startswith("the cuda runtime is unavailable: no NVIDIA driver was found (libcuda.so.1: ")
