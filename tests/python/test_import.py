"""What `import gpupool` does, and what it leaves alone."""


def test_import_loads_no_gpu_library_and_chooses_no_runtime(run_python):
    code = """
import gpupool, re
gpupool.cudnn.name, gpupool.cudnn.stats()
maps = open("/proc/self/maps").read()
print(re.findall(r"lib(?:cuda|cudnn|cublas|cublasLt|cusparse|cusolver|cudss|amdhip64|MIOpen)\\.so", maps))
"""
    # A runtime that cannot be had shows that none is asked for.
    done = run_python(code, GPUPOOL_RUNTIME="nothing")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_import_imports_no_framework(run_python):
    code = "import gpupool, sys; print({'cupy', 'torch', 'numba', 'numpy', 'cuda'} & sys.modules.keys())"
    assert run_python(code).stdout == "set()\n"


def test_everything_public_is_there():
    import gpupool

    assert all(hasattr(gpupool, name) for name in gpupool.__all__)
    assert gpupool.__version__.count(".") == 2


def test_exceptions_fit_pythons_own():
    import gpupool

    derived = [
        gpupool.RuntimeUnavailable,
        gpupool.LibraryNotFound,
        gpupool.LibraryError,
        gpupool.OutOfMemory,
        gpupool.Forked,
        gpupool.InvalidValue,
    ]
    assert all(issubclass(exception, gpupool.Error) for exception in derived)
    assert issubclass(gpupool.OutOfMemory, MemoryError)
    assert issubclass(gpupool.InvalidValue, ValueError)
    assert repr(gpupool.InvalidValue) == "<class 'gpupool.InvalidValue'>"


def test_exceptions_can_be_made_anew_as_libraries_do_that_carry_them_between_processes():
    import gpupool

    for name in ("Error", "LibraryError", "OutOfMemory", "PoolExhausted", "InvalidValue"):
        exception = getattr(gpupool, name)
        assert str(exception.__new__(exception, "a message")) == "a message", name
