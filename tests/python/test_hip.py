"""The hip runtime over an ABI double of HIP: how it is found, and what HIP does otherwise than CUDA."""

import pytest
from abi import build_driver, build_hip
from machines import Machine

CHOICE = "print(error_of(gpupool.Stream) if error_of(gpupool.Stream) != 'no error' else gpupool.runtime())"


@pytest.fixture
def machine(tmp_path, run_bare_python):
    """A machine with HIP."""
    machine = Machine("hip", tmp_path, run_bare_python)
    machine.build()
    return machine


@pytest.fixture
def bare(tmp_path, run_bare_python):
    """Run code on a machine without HIP, at least where the linker looks."""

    def run(**variables):
        code = "import gpupool\ntry: print(gpupool.runtime())\nexcept gpupool.Error as error: print(error)"
        done = run_bare_python(code, **{"GPUPOOL_RUNTIME": None, **variables})
        assert done.stderr == ""
        return done.stdout.strip()

    return run


def test_the_first_platform_with_a_device_is_chosen(machine):
    assert machine.run(CHOICE) == "hip\n"
    assert machine.run(CHOICE, GPUPOOL_RUNTIME="host") == "host\n"
    build_driver(machine.driver.parent)
    assert machine.run(CHOICE) == "cuda\n"
    assert machine.run(CHOICE, FAKE_FAIL="cuInit=100") == "hip\n"
    assert machine.run(CHOICE, FAKE_FAIL="cuInit=100,hipInit=100") == "host\n"
    assert machine.run(CHOICE, GPUPOOL_RUNTIME="hip") == "hip\n"


@pytest.mark.parametrize("soname", ["libamdhip64.so.5", "libamdhip64.so.6", "libamdhip64.so.7", "libamdhip64.so.8"])
def test_every_major_version_is_found(bare, tmp_path, soname):
    build_hip(tmp_path / soname)
    assert bare(LD_LIBRARY_PATH=str(tmp_path)) == "hip"


def test_it_is_found_in_wheels_and_in_the_toolkit(bare, tmp_path):
    build_hip(tmp_path / "site/_rocm_sdk_core/lib/libamdhip64.so.7")
    assert bare(PYTHONPATH=str(tmp_path / "site")) == "hip"
    build_hip(tmp_path / "other/torch/lib/libamdhip64.so")
    assert bare(PYTHONPATH=str(tmp_path / "other")) == "hip"
    build_hip(tmp_path / "rocm/lib/libamdhip64.so.6")
    assert bare(ROCM_PATH=str(tmp_path / "rocm")) == "hip"


def test_the_environment_names_a_file_or_a_folder(bare, tmp_path):
    file = build_hip(tmp_path / "mine/libamdhip64.so.7")
    assert bare(GPUPOOL_AMDHIP64_PATH=str(file)) == "hip"
    assert bare(GPUPOOL_AMDHIP64_PATH=str(file.parent)) == "hip"
    message = bare(GPUPOOL_AMDHIP64_PATH="/nowhere/hip.so", GPUPOOL_RUNTIME="hip")
    assert message.startswith("the hip runtime is unavailable: no HIP library was found (/nowhere/hip.so: ")
    assert "from GPUPOOL_AMDHIP64_PATH)" in message


def test_a_copy_that_is_loaded_is_taken_and_no_other_loaded(machine, tmp_path):
    # The machine's own is loaded before gpupool asks; another one comes first in every place where gpupool would look.
    for folder in ("site/_rocm_sdk_core/lib", "rocm/lib"):
        build_hip(tmp_path / folder / "libamdhip64.so.8")
    code = """
gpupool.runtime()
print(calls("hipInit"), "libamdhip64.so.8" in open("/proc/self/maps").read())
"""
    assert machine.run(code, ROCM_PATH=str(tmp_path / "rocm")) == "1 False\n"


def test_a_library_that_lacks_a_symbol(machine):
    machine.build("-DWITHOUT_STREAM_DEVICE")
    message = machine.run(CHOICE, GPUPOOL_RUNTIME="hip")
    assert message.startswith("RuntimeUnavailable the hip runtime is unavailable: libamdhip64.so.7 lacks the symbol ")
    assert "hipStreamGetDevice: it is too old; ROCm 5.6 or later is needed" in message


def test_a_library_that_does_not_start(machine):
    message = machine.run(CHOICE, GPUPOOL_RUNTIME="hip", FAKE_FAIL="hipInit=999")
    assert (
        "the hip runtime is unavailable: HIP does not start (hip: hipInit failed with hipErrorUnknown (999))" in message
    )


@pytest.mark.parametrize("variables", [{"FAKE_DEVICES": "0"}, {"FAKE_FAIL": "hipInit=100"}])
def test_a_machine_without_a_device(machine, variables):
    message = machine.run(CHOICE, GPUPOOL_RUNTIME="hip", **variables)
    assert "the hip runtime is unavailable: HIP sees no device; check HIP_VISIBLE_DEVICES" in message
    code = "print(gpupool.runtime(), driver.hipPeekAtLastError())"
    assert machine.run(code, **variables) == "host 0\n"


def test_an_error_that_was_told_is_not_left_to_others(machine):
    code = """
stream = gpupool.Stream()
for function, use in [
    ("hipMalloc=2", lambda: gpupool.empty(1 << 20)),
    ("hipStreamQuery=719", stream.query),
    ("hipStreamSynchronize=719", stream.synchronize),
    ("hipStreamCreateWithFlags=1", gpupool.Stream),
    ("hipSetDevice=101", lambda: gpupool.Stream(1)),
]:
    fail(function)
    told = error_of(use)
    fail()
    print(told.split(" failed with ")[-1].split(" on ")[0].split(".")[0], driver.hipPeekAtLastError())
"""
    assert machine.run(code).splitlines() == [
        "hipErrorOutOfMemory (2) 0",
        "hipErrorLaunchFailure (719) 0",
        "hipErrorLaunchFailure (719) 0",
        "hipErrorInvalidValue (1) 0",
        "hipErrorInvalidDevice (101) 0",
    ]


def test_work_that_is_under_way_is_no_error(machine):
    code = """
stream = gpupool.Stream()
fail("hipStreamQuery=600,hipEventQuery=600")
print(stream.query(), driver.hipPeekAtLastError())
buffer = gpupool.empty(1 << 20, stream)
other = gpupool.Stream()
buffer.record_stream(other)
del buffer
print(gpupool.memory_stats().waiting_blocks, driver.hipPeekAtLastError())
fail()
print(stream.query())
"""
    assert machine.run(code) == "False 0\n1 0\nTrue\n"


def test_the_current_device_is_the_callers_again(machine):
    code = """
driver.hipSetDevice(1)
stream = gpupool.Stream(0)
gpupool.empty(1 << 20, stream)
gpupool.empty_cache()
stream.synchronize()
current = ctypes.c_int()
driver.hipGetDevice(ctypes.byref(current))
print(current.value, gpupool.current_device(), in_thread(gpupool.current_device))
"""
    assert machine.run(code) == "1 1 0\n"


def test_default_streams_are_given_as_every_hip_knows_them(machine):
    # The double aborts at hipStreamLegacy, which came with HIP 6.2, and at the question for a default stream's device.
    code = """
for stream in (0, 1, 2):
    buffer = gpupool.empty(1 << 20, stream)
    buffer.record_stream(gpupool.Stream())
    with gpupool.stream(stream):
        gpupool.empty(1 << 20)
print(gpupool.current_device())
"""
    assert machine.run(code) == "0\n"


def test_a_stream_that_is_gone_is_refused(machine):
    code = """
stream = gpupool.Stream(1)
address = stream.ptr
del stream
print(error_of(gpupool.empty, 1, address), driver.hipPeekAtLastError())
"""
    assert machine.run(code) == (
        "LibraryError hip: hipStreamGetDevice failed with hipErrorContextIsDestroyed (709) 0\n"
    )


def test_a_capture_on_a_blocking_stream_is_seen(machine):
    code = """
stream = ctypes.c_void_p()
gpupool.runtime()
driver.hipStreamCreateWithFlags(ctypes.byref(stream), 0)
gpupool.empty(1 << 20, stream.value).free()
driver.double_set_capture(stream, 1)
gpupool.empty_cache()
print(driver.double_capture(stream), driver.hipPeekAtLastError())
"""
    assert machine.run(code) == "1 0\n"


def test_buffers_tell_other_libraries_where_they_are(machine):
    code = """
stream = gpupool.Stream(1)
buffer = gpupool.empty(1 << 20, stream)
print(buffer.__dlpack_device__(), buffer.__cuda_array_interface__["data"] == (buffer.ptr, False))
other = gpupool.Stream(1)
for consumer in (None, 0, -1, stream.ptr, other.ptr):
    print("dltensor" in str(buffer.__dlpack__(stream=consumer)), end=" ")
"""
    assert machine.run(code) == "(10, 1) True\nTrue True True True True "


@pytest.mark.parametrize("refused", ["AddressReserve", "Create", "Map", "SetAccess", "Unmap", "Release", "AddressFree"])
def test_virtual_memory_that_does_not_work_is_not_used(machine, refused):
    code = f"""
fail("hipMem{refused}=1")
buffer = gpupool.empty(30 << 20)
ctypes.memset(buffer.ptr, 1, buffer.nbytes)
print(calls("hipMalloc"), calls("hipMem{refused}") > 0, driver.hipPeekAtLastError())
"""
    assert machine.run(code, FAKE_VMM="1") == "1 True 0\n"


def test_virtual_memory_can_be_turned_off(machine):
    code = "buffer = gpupool.empty(30 << 20)\nprint(calls('hipMalloc'), calls('hipMemCreate') > 0)"
    assert machine.run(code, FAKE_VMM="1") == "0 True\n"
    assert machine.run(code, FAKE_VMM="1", GPUPOOL_HIP_VIRTUAL_MEMORY="0") == "1 False\n"


def test_a_forked_child_is_refused(machine):
    code = """
gpupool.empty(1 << 20)
child = os.fork()
if child == 0:
    print(error_of(gpupool.Stream).split()[0], error_of(gpupool.empty, 1).split()[0], flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    assert machine.run(code) == "Forked Forked\n0\n"


def test_nothing_is_called_on_the_driver_when_the_process_ends(machine):
    code = """
stream = gpupool.Stream()
buffer = gpupool.empty(30 << 20, stream)
pool = gpupool.MemPool()
with gpupool.use_mem_pool(pool):
    inside = gpupool.empty(1 << 20)
os.environ["FAKE_FAIL"] = "hipFree=1,hipMemUnmap=1,hipMemRelease=1"
"""
    assert machine.run(code, FAKE_VMM="1") == ""
