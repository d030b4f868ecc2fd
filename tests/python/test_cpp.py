"""The headers and the library for C and C++: what a program in either does with them, and the samples of the guide."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import gpupool
import pytest
from cpp_programs import INCLUDE, ROOT, STRICT, build, find_library, folder_of, headers_of, link, run, sanitizer
from machines import Machine
from pytorch.fetch import CannotFetch, extract
from running import run_program

PAGE = ROOT / "docs" / "c-and-cpp.md"
PACKAGE = INCLUDE.parent
# CCCL before 3.2 asks for it.
EXPERIMENTAL = "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"


@pytest.fixture(scope="session")
def library():
    """Return the C library, which `make .venv/library` builds."""
    return find_library()


def cuda_headers():
    """Return the options for the headers of CUDA, CCCL and RMM, and for RMM's libraries."""
    rmm = folder_of("librmm", "include")
    logger = folder_of("rapids_logger", "include")
    cuda = folder_of("nvidia", "cu13")
    if not (cuda / "include" / "crt" / "host_defines.h").is_file():
        pytest.skip("needs nvidia-cuda-crt")
    headers = [option for path in (rmm / "rapids", rmm, logger, cuda / "include") for option in ("-isystem", str(path))]
    folders = [rmm.parent / "lib64", logger.parent / "lib64", cuda / "lib"]
    links = [option for path in folders for option in (f"-L{path}", f"-Wl,-rpath,{path}")]
    return [EXPERIMENTAL, *headers, *links, "-lrmm", "-lrapids_logger", "-l:libcudart.so.13"]


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_wrappers_give_back_what_they_hold(library, tmp_path, standard):
    source = ROOT / "tests" / "cpp" / "wrappers.cpp"
    assert run(build("c++", source, tmp_path / "program", f"-std={standard}", *STRICT, *link(library))) == ""


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_what_callbacks_throw_comes_out_of_the_call_that_led_to_them(library, tmp_path, standard):
    source = ROOT / "tests" / "cpp" / "callbacks.cpp"
    options = [f"-std={standard}", *STRICT, *sanitizer(), *link(library)]
    assert run(build("c++", source, tmp_path / "program", *options)) == ""


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_handles_come_from_their_pools_and_go_back(library, tmp_path, standard):
    source = ROOT / "tests" / "cpp" / "handles.cpp"
    options = [f"-std={standard}", *STRICT, *sanitizer(), *link(library)]
    assert run(build("c++", source, tmp_path / "program", *options)) == ""


@pytest.mark.parametrize("framework", ["tensorrt", "opencv"])
def test_a_sample_of_an_allocator_for_a_framework_that_none_is_shipped_for(library, tmp_path, framework):
    """Over doubles of their headers, or their own, where GPUPOOL_TENSORRT_INCLUDE or GPUPOOL_OPENCV_INCLUDE says."""
    sample = ROOT / "examples" / "cpp" / f"allocator_{framework}.cpp"
    doubles = (ROOT / "tests" / "doubles" / framework).glob("*.cpp")
    headers = headers_of(framework, f"GPUPOOL_{framework.upper()}_INCLUDE")
    options = [*map(str, doubles), "-std=c++17", *STRICT, *headers, *sanitizer(), *link(library)]
    assert run(build("c++", sample, tmp_path / "program", *options)) == ""


def test_cublas_says_which_stream_its_handles_have(library, tmp_path):
    program = build(
        "c++", ROOT / "tests" / "cpp" / "cublas_handles.cpp", tmp_path / "program", *STRICT, *link(library), "-ldl"
    )
    machine = Machine("cuda", tmp_path)
    cublas = str(machine.install("cublas"))
    variables = {name: text for name, text in machine.variables.items() if text is not None}
    environment = {**os.environ, **variables, "GPUPOOL_RUNTIME": "cuda", "GPUPOOL_CUBLAS_PATH": cublas}
    done = subprocess.run([program, cublas], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


WRONG = {
    "(void)gpupool::handle<void *>();": "not the handle of one library",
    "(void)gpupool::handle<int>();": "not the handle of one library",
    "cublasHandle_t handle = gpupool::handle<cudnnContext *>();": "cannot (convert|initialize)",
    "cublasHandle_t handle = gpupool::lease<cublasHandle_t>();": "conver",
    "cublasHandle_t handle = gpupool::lease<cublasHandle_t>().get();": "delete",
    "gpupool::lease<cublasHandle_t> lease = nullptr;": "conver",
    "gpupool::lease<cublasHandle_t> first; auto second = first;": "delete",
}


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """Return what the compiler says of all that is wrong, from one run: each in a file of its own name."""
    if shutil.which("c++") is None:
        pytest.skip("needs a compiler, c++")
    lines = ["#include <gpupool_handles.hpp>", "typedef struct cublasContext *cublasHandle_t;"]
    for number, text in enumerate(("(void)gpupool::handle<cublasHandle_t>();", *WRONG)):
        lines += [f'#line 1 "case {number}"', f"void function_{number}() {{ {text} }}"]
    source = tmp_path_factory.mktemp("wrong") / "program.cpp"
    source.write_text("\n".join(lines) + "\n")
    compile_it = ["c++", "-std=c++17", "-fsyntax-only", f"-I{INCLUDE}", str(source)]
    done = subprocess.run(compile_it, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    # What is right, which is the first, is not named.
    _, *told = re.split(r"^case (?=\d+:)", done.stderr, flags=re.MULTILINE)
    found = {}
    for part in told:
        number, text = part.split(":", 1)
        found[int(number)] = found.get(int(number), "") + text
    assert 0 not in found, found[0]
    return found


@pytest.mark.parametrize(("wrong", "why"), WRONG.items())
def test_what_would_mislead_does_not_compile(complaints, wrong, why):
    number = 1 + list(WRONG).index(wrong)
    assert number in complaints, "it compiles"
    assert re.search(f"error: .*{why}", complaints[number])


def compile_streams(out, resources, *options):
    cuda = ["-DWITH_RESOURCES", *cuda_headers()] if resources else []
    # Unoptimised, so that the linker takes the first of two functions of one name.
    options = ["-c", "-std=c++17", "-O0", *STRICT, *cuda, *options]
    return build("c++", ROOT / "tests" / "cpp" / "default_streams.cpp", out, *options)


@pytest.fixture(scope="module")
def legacy(tmp_path_factory):
    """Return what compiles once, with CCCL and without it, the half of a program that has the legacy default stream."""
    return cache(lambda resources: compile_streams(tmp_path_factory.mktemp("legacy") / "legacy.o", resources))


@pytest.mark.parametrize("macro", ["CUDA_API_PER_THREAD_DEFAULT_STREAM", "HIP_API_PER_THREAD_DEFAULT_STREAM"])
@pytest.mark.parametrize("resources", [False, True], ids=["classes", "CCCL"])
def test_a_null_stream_is_the_one_that_the_code_was_compiled_for(library, tmp_path, legacy, macro, resources):
    per_thread = compile_streams(tmp_path / "per_thread.o", resources, "-DAS_PER_THREAD", f"-D{macro}")
    halves = (legacy(resources), per_thread)
    for first, second in (halves, halves[::-1]):
        links = [*link(library), *(cuda_headers() if resources else [])]
        assert run(build("c++", first, tmp_path / "program", str(second), *links)) == ""


@pytest.fixture(scope="module")
def fuzzer(library, tmp_path_factory):
    """Return the program that makes random calls."""
    source, out = ROOT / "tests" / "fuzz" / "c_table.cpp", tmp_path_factory.mktemp("fuzzer") / "program"
    return build("c++", source, out, "-std=c++17", *STRICT, *sanitizer(), *link(library))


def fuzz(fuzzer, seed, threads):
    """Make one round of random calls: `make fuzz-c` makes more."""
    done = subprocess.run([fuzzer, "0", str(seed), str(threads)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("threads", [1, 3])
def test_random_calls_of_the_table_keep_its_promises(fuzzer, threads):
    fuzz(fuzzer, 1, threads)


@pytest.mark.thorough
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("seed", range(2, 8))
def test_more_random_calls_of_the_table_keep_its_promises(fuzzer, seed, threads):
    fuzz(fuzzer, seed, threads)


def test_what_no_call_can_throw_is_written_to_stderr(library, tmp_path):
    source = tmp_path / "program.cpp"
    source.write_text(
        "#include <gpupool_callbacks.hpp>\n#include <stdexcept>\n"
        "int main() {\n"
        "  gpupool_source source{nullptr, [](void *, std::uint64_t, int, void *) -> void * { throw std::runtime_error("
        '"no such memory"); },\n    [](void *, void *, std::uint64_t, int, void *) {}, nullptr};\n'
        "  gpupool::pool_options options;\n  options.source = &source;\n  gpupool::pool pool(0, options);\n"
        "  void *pointer = nullptr;\n"
        "  auto &api = gpupool::api();\n"
        "  return api.pool_allocate(pool.handle(), UINT64_MAX, 1, nullptr, &pointer) != GPUPOOL_ERROR_OUT_OF_MEMORY;\n"
        "}\n"
    )
    program = build("c++", source, tmp_path / "program", "-std=c++17", *STRICT, *link(library))
    environment = {**os.environ, "GPUPOOL_RUNTIME": "host"}
    done = subprocess.run([program], capture_output=True, text=True, env=environment, check=False)
    line = "gpupool: a callback threw where no function of gpupool.hpp could throw it again: no such memory"
    assert (done.returncode, set(done.stderr.splitlines())) == (0, {line})


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
@pytest.mark.parametrize("rmm", [False, True], ids=["CCCL", "RMM"])
def test_resources_serve_cccl_and_rmm(library, tmp_path, standard, rmm):
    source = ROOT / "tests" / "cpp" / "resources.cpp"
    options = [f"-std={standard}", *STRICT, *link(library), *cuda_headers(), *(["-DWITH_RMM"] if rmm else [])]
    assert run(build("c++", source, tmp_path / "program", *options)) == ""


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["25.12", "26.4"])
def test_older_rmms_headers_take_the_resource(tmp_path, version):
    folder = ROOT / "build" / "rmm" / f"headers-{version}"
    try:
        if not folder.is_dir():
            extract(f"librmm-cu13=={version}.*", re.compile("librmm/include/"), folder / "librmm")
            extract("rapids-logger==0.2.*", re.compile("rapids_logger/include/"), folder / "logger")
    except CannotFetch as error:
        pytest.skip(str(error))
    rmm = folder / "librmm" / "librmm" / "include"
    places = (rmm / "rapids", rmm, folder / "logger" / "rapids_logger" / "include")
    headers = [option for path in places for option in ("-isystem", str(path))]
    source = tmp_path / "program.cpp"
    source.write_text(
        "#include <gpupool_rmm.hpp>\n#include <rmm/device_buffer.hpp>\n"
        "std::size_t size_of(rmm::cuda_stream_view stream) {\n"
        "  gpupool::rmm_resource resource(0);\n"
        "  return rmm::device_buffer(8, stream, rmm::device_async_resource_ref{resource}).size();\n}\n"
    )
    options = ["-std=c++17", "-fsyntax-only", *STRICT, *headers, *cuda_headers()]
    build("c++", source, tmp_path / "program", *options)


def samples():
    """Return the programs of the page by their heading: the language and the text."""
    text = PAGE.read_text()
    headings = [*re.finditer(r"^## (.*)$", text, re.MULTILINE), re.search(r"\Z", text)]
    found = {}
    for heading, end in pairwise(headings):
        for block in re.finditer(
            r"^```(c|cpp)\n(.*?)^```$", text[heading.end() : end.start()], re.MULTILINE | re.DOTALL
        ):
            if "int main" in block[2]:
                found[heading[1]] = (block[1], block[2])
    return found


def test_the_page_has_a_program_of_each_kind():
    assert list(samples()) == ["C", "C++", "Handles", "CCCL", "RMM"]


@pytest.mark.parametrize(
    ("name", "standard"),
    [
        ("C", "c99"),
        ("C", "c11"),
        ("C++", "c++17"),
        ("C++", "c++20"),
        ("Handles", "c++17"),
        ("CCCL", "c++17"),
        ("RMM", "c++17"),
    ],
)
def test_samples_of_the_page_run(library, tmp_path, name, standard):
    language, text = samples()[name]
    source = tmp_path / f"program.{language}"
    source.write_text(text)
    options = [f"-std={standard}", *STRICT, *link(library), *(cuda_headers() if name in ("CCCL", "RMM") else [])]
    told = run(build("cc" if language == "c" else "c++", source, tmp_path / "program", *options))
    assert "tried to allocate" in told if name == "C++" else told == ""


def test_pkg_config_finds_it(library, tmp_path):
    if shutil.which("pkg-config") is None:
        pytest.skip("needs pkg-config")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(library.parent / "pkgconfig")}

    def ask(option):
        command = ["pkg-config", option, "gpupool"]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout.split()

    assert ask("--modversion") == [gpupool.__version__]
    source = tmp_path / "program.c"
    source.write_text(samples()["C"][1])
    flags = [*ask("--cflags"), *ask("--libs"), f"-Wl,-rpath,{ask('--variable=libdir')[0]}"]
    run(build("cc", source, tmp_path / "program", *flags))


def test_cmake_finds_it(library, tmp_path):
    # Its wheel's command is beside the interpreter.
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if cmake is None or shutil.which("c++") is None:
        pytest.skip("needs cmake and a compiler")
    (tmp_path / "program.cpp").write_text(samples()["C++"][1])
    (tmp_path / "extension.cpp").write_text(
        "#include <gpupool.hpp>\n"
        "void start(const gpupool_api *api) { gpupool::set_api(api); gpupool::synchronize(); }\n"
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(user CXX)\nset(CMAKE_CXX_STANDARD 17)\n"
        f"find_package(gpupool {gpupool.__version__} REQUIRED)\nadd_executable(program program.cpp)\n"
        "target_link_libraries(program PRIVATE gpupool::gpupool)\n"
        "add_library(extension MODULE extension.cpp)\n"
        "target_link_libraries(extension PRIVATE gpupool::headers -Wl,--no-undefined)\n"
    )
    build_folder = tmp_path / "build"
    for command in (
        [cmake, "-S", str(tmp_path), "-B", str(build_folder), f"-Dgpupool_DIR={library.parent}/cmake/gpupool"],
        [cmake, "--build", str(build_folder)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "tried to allocate" in run(build_folder / "program")


def test_versions_are_the_packages():
    cmake = PACKAGE / "lib" / "cmake" / "gpupool" / "gpupool-config-version.cmake"
    pkg_config = PACKAGE / "lib" / "pkgconfig" / "gpupool.pc"
    assert f'PACKAGE_VERSION "{gpupool.__version__}"' in cmake.read_text()
    assert f"\nVersion: {gpupool.__version__}\n" in pkg_config.read_text()


def test_the_library_exports_its_table_alone(library):
    told = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=False)
    if told.returncode:
        pytest.skip("needs nm")
    assert [line.split()[-1] for line in told.stdout.splitlines()] == ["gpupool_get_api"]


def test_what_is_linked_to_the_library_shares_memory_with_python(library, tmp_path):
    source = tmp_path / "user.c"
    source.write_text("#include <gpupool.h>\nconst gpupool_api *table(void) { return gpupool_get_api(2); }\n")
    # Without a path to the library: the module that is in memory goes by its name.
    options = ["-shared", "-fPIC", f"-L{library.parent}", f"-l:{library.name}"]
    run_program("c_api/linked_library.py", build("cc", source, tmp_path / "user.so", *options))


def test_an_unknown_version_has_no_table(library):
    get = ctypes.CDLL(str(library)).gpupool_get_api
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_uint64]
    assert get(2)
    assert get(3) is None


def test_without_the_library_that_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(gpupool, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(gpupool.LibraryNotFound, match="`make library` in a clone"):
        gpupool.get_library()
