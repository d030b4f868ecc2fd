"""Each library's file names every function of the vendor's headers that sets something of a handle or of the process.

gpupool_handles.hpp names the type of its handles as they do.

A name stands there in the list of what hand-over sets back, or in the comment that says why it is not in that list.
The headers are those of NVIDIA's newest wheels, of which nothing else is transferred, or of the folders that
GPUPOOL_HEADERS names, parted by colons. Every function that hand-over calls must be in them too. AMD's are in no wheel
of the index: without GPUPOOL_HEADERS those skip.
"""

import os
import re
from pathlib import Path

import gpupool
import pytest
from pytorch.fetch import CannotFetch, extract

VENDORS = Path(__file__).parents[2] / "src/library/vendors"

# The library's headers, and the type of its handles.
LIBRARIES = {
    "cublas": (["cublas_api.h"], "cublasHandle_t"),
    "cublaslt": (["cublasLt.h"], "cublasLtHandle_t"),
    "cudnn": (["cudnn_graph*.h", "cudnn_ops*.h", "cudnn_cnn*.h", "cudnn_adv*.h"], "cudnnHandle_t"),
    "cudss": (["cudss.h"], "cudssHandle_t"),
    "cusolver": (["cusolverDn.h"], "cusolverDnHandle_t"),
    "cusparse": (["cusparse.h"], "cusparseHandle_t"),
    "cusparselt": (["cusparseLt.h"], "cusparseLtHandle_t"),
    "custatevec": (["custatevec.h"], "custatevecHandle_t"),
    "cutensor": (["cutensor.h"], "cutensorHandle_t"),
    "cutensornet": (["cutensornet.h", "types.h"], "cutensornetHandle_t"),
    "miopen": (["miopen.h"], "miopenHandle_t"),
    "hipblas": (["hipblas.h", "rocblas-functions.h"], "hipblasHandle_t"),
    "hipblaslt": (["hipblaslt.h"], "hipblasLtHandle_t"),
    "hipsolver": (["hipsolver-functions.h"], "hipsolverHandle_t"),
    "hipsparse": (["hipsparse-auxiliary.h"], "hipsparseHandle_t"),
}

# What has them.
WHEELS = {
    "cublas": "nvidia-cublas==13.10.0.20",
    "cublaslt": "nvidia-cublas==13.10.0.20",
    "cudnn": "nvidia-cudnn-cu13==9.28.1.4",
    "cudss": "nvidia-cudss-cu13==1.0.0.35",
    "cusolver": "nvidia-cusolver==12.4.1.2",
    "cusparse": "nvidia-cusparse==12.9.4.2",
    "cusparselt": "nvidia-cusparselt-cu13==0.10.0",
    "custatevec": "custatevec-cu13==1.15.0",
    "cutensor": "cutensor-cu13==2.8.1",
    "cutensornet": "cutensornet-cu13==2.14.0",
}
HEADERS = re.compile(r"(nvidia|cuquantum|cutensor)/(.*/)?include/.*\.h$")
FETCHED = Path(__file__).parents[2] / "build" / "headers"

SETS = re.compile("Set|Enable|Disable|Register|Configure")
OF_THE_PROCESS = re.compile("Logger|Callback|Capacity|Mask")


def folders_of(name: str) -> list[Path]:
    """Return the folders that have a library's headers, or skip the test."""
    named = os.environ.get("GPUPOOL_HEADERS")
    if named:
        return list(map(Path, named.split(":")))
    if name not in WHEELS:
        pytest.skip(f"needs the headers of {name}")
    # Two libraries of one wheel may be fetched at once.
    folder = FETCHED / f"{name}-{WHEELS[name]}"
    if not folder.exists():
        try:
            extract(WHEELS[name], HEADERS, folder)
        except CannotFetch as error:
            pytest.skip(str(error))
    return [folder]


def headers_of(name: str, patterns: list[str]) -> str:
    """Return the text of all headers, without comments."""
    files = [file for folder in folders_of(name) for pattern in patterns for file in folder.rglob(pattern)]
    text = "\n".join(file.read_text(errors="replace") for file in files)
    return re.sub(r"/\*.*?\*/|//[^\n]*|^\s*#[^\n]*", "", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_setter_is_set_back_or_named_with_the_reason_why_not(name):
    patterns, handle = LIBRARIES[name]
    functions = re.findall(r"\b(\w+)\s*\(([^(){};]*)\)\s*;", headers_of(name, patterns))
    if not functions:
        pytest.skip(f"needs the headers of {name}")
    setters = {
        function
        for function, parameters in functions
        if (SETS.search(function) and re.match(rf"\s*(const\s+)?{handle}\b", parameters))
        or (OF_THE_PROCESS.search(function) and SETS.search(function) and handle not in parameters)
    }
    assert setters, "no function sets anything"
    (file,) = VENDORS.rglob(f"{name}.rs")
    source = file.read_text()
    missing = {setter for setter in setters if not re.search(rf"\b{setter}\b", source)}
    assert not missing, f"{name}.rs says nothing of {sorted(missing)}"
    settings = re.search(r"^    resets:.*?(?=^    (?:version|status_names):)", source, re.DOTALL | re.MULTILINE)
    assert settings, f"{name}.rs has no resets"
    called = set(re.findall(r'c"(\w+)"', settings[0]))
    unknown = called - {function for function, _ in functions}
    assert not unknown, f"{name}.rs calls what no header has: {sorted(unknown)}"


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_type_of_a_handle_is_what_gpupool_handles_hpp_says(name):
    handle = LIBRARIES[name][1]
    text = headers_of(name, ["*.h"])
    if name == "miopen":
        # A macro's: `struct miopenHandle {}; typedef struct miopenHandle *miopenHandle_t`.
        text = re.sub(r"MIOPEN_DECLARE_OBJECT\((\w+)\)", r"typedef struct \1 *\1_t", text)
    declared = re.search(rf"\btypedef\s+(?:struct\s+)?(\w+)\s*\*\s*{handle}\s*;", text)
    if name == "cusparselt":
        # A struct without a name, which no other header can declare: its address is a `void *` there.
        struct = re.search(rf"\btypedef\s+struct\s*{{[^}}]*?\[(\d+)\]\s*;\s*}}\s*{handle}\s*;", text)
        assert struct, f"{handle} is no struct of bytes"
        most = re.search(r"struct CallersStruct\(\[u8; (\d+)\]\)", (VENDORS.parent / "vendor.rs").read_text())
        assert most, "there is no struct for it"
        assert int(struct[1]) <= int(most[1]), f"{handle} is larger than the place that gpupool has for it"
        declared = re.match("(void)", "void")
    if not declared:
        pytest.skip(f"needs the headers of {name}")
    header = (Path(gpupool.get_include()) / "gpupool_handles.hpp").read_text()
    tag = re.search(rf"^struct {name} : library<(?:::)?(\w+) \*, GPUPOOL_{name.upper()}> {{}};", header, re.MULTILINE)
    assert tag, f"no tag {name}"
    assert tag[1] == declared[1]
