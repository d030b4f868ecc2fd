"""The packages of frameworks are imported when they are used, and named where they are missing or too old."""

import pytest
from running import run_bare_program, run_program

# What is looked at of gpupool, and what that does not import.
LOOKED_AT = {
    "cupy,rmm": ["cupy", "rmm", "cuda"],
    "numba": ["numba", "numba_cuda", "cuda"],
    "warp": ["warp"],
    "cuda_core": ["cuda"],
    "nvmath.options": ["nvmath", "cuda"],
}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_they_are_imported_when_used(name):
    run_program("importing/leaves_alone.py", "these_modules", name, *LOOKED_AT[name])


@pytest.mark.parametrize("name", ["pytorch", "distributed"])
def test_the_adapter_imports_none(name):
    run_program("importing/leaves_alone.py", name)


# A package, the module that is there in its place, and what is said.
NAMED = [
    ("cuda.core", None, ["cuda.core cannot be imported", "cuda-core>=1.2"]),
    ("cuda.core", '__version__ = "1.1.0"', ["cuda.core 1.1.0 is too old: 1.2 is needed"]),
    ("cupy", None, ["cupy cannot be imported", "pip install 'cupy-cuda13x>=13'"]),
    ("distributed", None, ["pip install 'distributed>=2023.10'"]),
    ("numba_cuda", '__version__ = "0.19.1"', ["numba_cuda 0.19.1 is too old: 0.30 is needed"]),
    ("numba_cuda", "raise ImportError('not today')", ["numba_cuda cannot be imported: not today"]),
    ("nvmath", None, ["nvmath cannot be imported", "pip install 'nvmath-python>=0.9'"]),
    ("nvmath", '__version__ = "0.8.1"', ["nvmath 0.8.1 is too old", "pip install 'nvmath-python>=0.9'"]),
    ("rmm", None, ["rmm cannot be imported", "pip install 'rmm-cu13>=25.12'"]),
    ("warp", None, ["warp cannot be imported", "warp-lang>=1.13"]),
    ("warp", '__version__ = "1.12.1"', ["warp 1.12.1 is too old: 1.13 is needed"]),
]


@pytest.mark.parametrize(("package", "code", "said"), NAMED)
def test_one_that_is_missing_or_too_old_is_named(tmp_path, package, code, said):
    if code:
        file = tmp_path / f"{package.replace('.', '/')}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
    run_bare_program("importing/missing.py", package, *said, PYTHONPATH=str(tmp_path))
