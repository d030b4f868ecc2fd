"""How libraries are found, with ABI doubles of them and one real one."""

import os
import sys
from pathlib import Path

import gpupool
import pytest
from abi import build_library, build_wheel
from forks import run_bare_program
from programs.shared.libraries import LIBRARIES, OPTIONAL
from running import NO_GPU


@pytest.fixture
def site_packages(tmp_path):
    """Return an empty site-packages, for PYTHONPATH."""
    folder = tmp_path / "lib" / "python3" / "site-packages"
    folder.mkdir(parents=True)
    return folder


def check(what, *arguments, **variables):
    """Run one of the programs about libraries."""
    run_bare_program("loading/libraries.py", what, *arguments, **variables)


def test_a_wheels_library_is_found(site_packages):
    file = build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12", version=(12, 6, 3))
    check("is_found", "cusparse", file, PYTHONPATH=str(site_packages))
    check("is_of_version", "cusparse", "12.6.3", PYTHONPATH=str(site_packages))


def test_without_a_driver_the_newest_cuda_comes_first(site_packages):
    build_library("cusparse", site_packages / "nvidia/cusparse/lib/libcusparse.so.12")
    newest = build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    check("is_found", "cusparse", newest, PYTHONPATH=str(site_packages))


def test_the_cuda_in_use_comes_before_the_newest(site_packages):
    cublas = build_library("cublas", site_packages / "nvidia/cublas/lib/libcublas.so.12")
    in_use = build_library("cusparse", site_packages / "nvidia/cusparse/lib/libcusparse.so.12")
    build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    check("is_found", "cusparse", in_use, cublas, PYTHONPATH=str(site_packages))


def test_what_is_advised_fits_the_cuda_of_what_is_installed(site_packages):
    build_library("cublas", site_packages / "nvidia/cublas/lib/libcublas.so.12")
    variables = {"PYTHONPATH": str(site_packages)}
    check("is_refused", "cusolver", "Install it with: pip install nvidia-cusolver-cu12\n", **variables)
    build_library("cublas", site_packages / "nvidia/cu13/lib/libcublas.so.13")
    check("is_refused", "cusolver", "Install it with: pip install nvidia-cusolver\n", **variables)


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_library_is_found_where_its_wheel_puts_it(site_packages, name):
    file = build_wheel(name, site_packages)
    check("is_found", name, file, PYTHONPATH=str(site_packages))
    version = "1.2.3" if LIBRARIES[name].tells_version_alone else ""
    check("is_of_version", name, version, PYTHONPATH=str(site_packages))


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_symbol_that_a_library_lacks_is_told(site_packages, name):
    library = LIBRARIES[name]
    symbols = {"CREATE": library.create, "DESTROY": library.destroy, **library.symbols}
    for kind, symbol in symbols.items():
        if kind in OPTIONAL:
            continue
        file = build_library(name, site_packages / library.file, without=kind)
        said = f"tried {file} (loaded): lacks the symbol {symbol}, so it is too old"
        check("is_refused", name, said, PYTHONPATH=str(site_packages))


def test_a_copy_that_is_loaded_is_taken_and_no_other_loaded(site_packages, tmp_path):
    build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    theirs = build_library("cusparse", tmp_path / "elsewhere/libcusparse.so.12")
    check("is_the_copy_that_is_loaded", "cusparse", theirs, PYTHONPATH=str(site_packages))


def test_a_loaded_copy_that_is_too_old_is_an_error(site_packages, tmp_path):
    build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    old = build_library("cusparse", tmp_path / "old/libcusparse.so.12", without="SET_STREAM")
    check("is_too_old_as_loaded", "cusparse", old, "cusparseSetStream", PYTHONPATH=str(site_packages))


def test_the_environment_names_a_file_or_a_folder(site_packages, tmp_path):
    build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    file = build_library("cusparse", tmp_path / "mine/libcusparse.so.12")
    renamed = build_library("cusparse", tmp_path / "mine/my-cusparse.so")
    for wanted, expected in [(file, file), (file.parent, file), (renamed, renamed)]:
        variables = {"PYTHONPATH": str(site_packages), "GPUPOOL_CUSPARSE_PATH": str(wanted)}
        check("is_found", "cusparse", expected, **variables)


def test_a_place_that_the_environment_names_is_the_only_one_tried(site_packages):
    build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    variables = {"PYTHONPATH": str(site_packages), "GPUPOOL_CUSPARSE_PATH": "/nowhere/libcusparse.so.12"}
    only = "/nowhere/libcusparse.so.12 (from GPUPOOL_CUSPARSE_PATH): no such file"
    check("is_tried_only_as", "cusparse", only, **variables)


def test_a_file_that_the_environment_names_and_that_is_no_library_is_told_with_the_variable(tmp_path):
    file = tmp_path / "libcusparse.so.12"
    file.write_text("no library")
    check("is_tried_only_as", "cusparse", f"{file} (from GPUPOOL_CUSPARSE_PATH): ", GPUPOOL_CUSPARSE_PATH=str(file))


def test_a_wheel_comes_before_a_newer_cuda_of_the_system(site_packages, tmp_path):
    wheel = build_library("cusparse", site_packages / "nvidia/cusparse/lib/libcusparse.so.12")
    build_library("cusparse", tmp_path / "cuda-13/lib64/libcusparse.so.12")
    variables = {"PYTHONPATH": str(site_packages), "CUDA_HOME": str(tmp_path / "cuda-13")}
    check("is_found", "cusparse", wheel, **variables)


def test_conda_and_the_toolkit_are_looked_at(tmp_path):
    for variable, folder in [("CONDA_PREFIX", "lib"), ("CUDA_HOME", "lib64"), ("CUDA_PATH", "lib")]:
        root = tmp_path / variable
        (root / "lib/python3.11/site-packages").mkdir(parents=True)
        file = build_library("cusparse", root / folder / "libcusparse.so.12")
        check("is_found", "cusparse", file, **{variable: str(root)})


def test_the_linkers_path_is_looked_at_but_never_another_major_version(tmp_path):
    for name in ("libcublas.so", "libcublas.so.11", "libcublas.so.14"):
        build_library("cublas", tmp_path / name)
    check("is_never_tried_as", "cublas", r"libcublas\.so(\.11|\.14)?: ", LD_LIBRARY_PATH=str(tmp_path))
    file = build_library("cublas", tmp_path / "libcublas.so.12")
    check("is_found", "cublas", file, LD_LIBRARY_PATH=str(tmp_path))


def test_what_a_library_needs_is_loaded_first(site_packages):
    folder = site_packages / "nvidia/cu13/lib"
    cublas = build_library("cublas", folder / "libcublas.so.13")
    cudss = build_library("cudss", folder / "libcudss.so.0", needs=("cublasGetProperty", cublas))
    check("is_found", "cudss", cudss, PYTHONPATH=str(site_packages))


def test_what_it_needs_and_cannot_have_is_named(site_packages, tmp_path):
    cublas = build_library("cublas", tmp_path / "libcublas.so.13")
    build_library("cudss", site_packages / "nvidia/cu13/lib/libcudss.so.0", needs=("cublasGetProperty", cublas))
    said = "nvidia/cu13/lib/libcudss.so.0: libcublas.so.13: cannot open shared object file"
    check("is_refused", "cudss", said, PYTHONPATH=str(site_packages))


def test_a_missing_library_lists_every_place_and_the_command_that_brings_it(site_packages):
    check(
        "is_refused",
        "cusparse",
        f"tried {site_packages}/nvidia/cu13/lib/libcusparse.so.12: no such file",
        f"tried {site_packages}/nvidia/cusparse/lib/libcusparse.so.12: no such file",
        "tried libcusparse.so.12: libcusparse.so.12: cannot open shared object file",
        "Install it with: pip install nvidia-cusparse\n",
        "GPUPOOL_CUSPARSE_PATH",
        PYTHONPATH=str(site_packages),
    )


def test_a_file_that_is_no_library_is_passed_over(site_packages):
    broken = site_packages / "nvidia/cu13/lib/libcusparse.so.12"
    broken.parent.mkdir(parents=True)
    broken.write_text("not a library")
    file = build_library("cusparse", site_packages / "nvidia/cusparse/lib/libcusparse.so.12")
    check("is_found", "cusparse", file, PYTHONPATH=str(site_packages))
    file.unlink()
    check("is_refused", "cusparse", f"tried {broken}: ", PYTHONPATH=str(site_packages))


def test_a_library_installed_later_is_found(site_packages):
    template = build_library("cusparse", site_packages / "template.so")
    target = site_packages / "nvidia/cu13/lib/libcusparse.so.12"
    check("is_found_once_it_is_installed", "cusparse", template, target, PYTHONPATH=str(site_packages))


def test_how_a_library_was_found_is_told(site_packages, tmp_path):
    def built(place):
        return build_library("cusparse", tmp_path / place / "libcusparse.so.12")

    file = build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    wheel = {"PYTHONPATH": str(site_packages)}
    conda = tmp_path / "conda"
    (conda / "lib/python3.11/site-packages").mkdir(parents=True)
    for origin, variables in {
        "wheel": wheel,
        "environment": {"GPUPOOL_CUSPARSE_PATH": str(built("mine").parent), **wheel},
        "conda": {"CONDA_PREFIX": str(built("conda/lib").parents[1])},
        "toolkit": {"CUDA_HOME": str(built("cuda/lib64").parents[1])},
        "system": {"LD_LIBRARY_PATH": str(built("linker").parent)},
    }.items():
        check("has_origin", origin, "cusparse", **variables)
    check("loaded_has_origin", "process", "cusparse", file, **wheel)


def test_what_another_library_needed_was_found_where_it_was_loaded_from(site_packages):
    folder = site_packages / "nvidia/cu13/lib"
    cublas = build_library("cublas", folder / "libcublas.so.13")
    build_library("cudss", folder / "libcudss.so.0", needs=("cublasGetProperty", cublas))
    check("has_origin", "wheel", "cudss", "cublas", PYTHONPATH=str(site_packages))


def test_a_pool_tells_whether_its_library_is_loaded_and_loads_none_for_it(site_packages):
    build_library("cusparse", site_packages / "nvidia/cu13/lib/libcusparse.so.12")
    check("is_loaded_when_first_used", PYTHONPATH=str(site_packages))


def test_a_library_that_is_missing_is_told_from_one_that_cannot_be_used(site_packages, tmp_path):
    brings = "Install it with: pip install nvidia-cusparse\nor set GPUPOOL_CUSPARSE_PATH to its file or folder"
    packages = {"PYTHONPATH": str(site_packages)}
    check("is_present", "missing", brings, **packages)
    broken = tmp_path / "linker/libcusparse.so.12"
    broken.parent.mkdir()
    broken.write_text("not a library")
    check("is_present", "present", brings, LD_LIBRARY_PATH=str(broken.parent), **packages)
    build_library("cusparse", broken, without="SET_STREAM")
    check("is_present", "present", brings, LD_LIBRARY_PATH=str(broken.parent), **packages)


def real_cudnn():
    """Return the file of the real cuDNN in this environment, if there is one."""
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
def test_without_a_gpu_the_error_says_why():
    simulated = "gpupool simulates devices here (runtime host)"
    check("gives_no_handle_without_a_gpu", simulated, GPUPOOL_RUNTIME=None, **NO_GPU)
    check("gives_no_handle_without_a_gpu", GPUPOOL_RUNTIME="cuda")
