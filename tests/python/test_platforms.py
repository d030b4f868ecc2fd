"""What every platform and library gives its users, over ABI doubles: the true bindings, with no GPU.

The doubles abort at a call that no program may make: a dead handle, a stream of another device, the wrong current
device, memory that is not there. So whatever a test looks at, it also shows that no such call was made.
"""

import pytest
from forks import Machine
from programs.shared.libraries import BY_STREAM, CUDA_LIBRARIES, LIBRARIES

PLATFORMS = ["cuda", "hip"]
WITH_STREAM = [name for name, library in LIBRARIES.items() if "SET_STREAM" in library.symbols]
# Destroying a handle waits for the device, which no capture allows.
SYNCHRONIZING = ["cublas", "cusolver", "cudss", "cublaslt", "cutensor", "cusparselt", "miopen", *BY_STREAM]


def platform_of(name):
    return "cuda" if name in CUDA_LIBRARIES else "hip"


@pytest.fixture
def machine(request, tmp_path):
    """Return a machine of the platform or with the library that the test is parametrised with."""
    name = request.param
    machine = Machine(platform_of(name) if name in LIBRARIES else name, tmp_path)
    if name in LIBRARIES:
        machine.install(name)
    return machine


def file_of(machine, name):
    """Return the library that is installed on a machine."""
    return machine.site_packages / LIBRARIES[name].file


def parametrize(names):
    return pytest.mark.parametrize(("machine", "name"), [(name, name) for name in names], indirect=["machine"])


@parametrize(LIBRARIES)
def test_threads_have_a_handle_each_and_hand_it_over(machine, name):
    machine.run("platforms/handles.py", "threads_have_one_each_and_hand_it_over", name, machine.platform)


@parametrize(LIBRARIES)
def test_each_device_has_its_handles(machine, name):
    machine.run("platforms/handles.py", "each_device_has_its_own", name)


@parametrize(WITH_STREAM)
def test_the_stream_is_set_on_every_checkout(machine, name):
    # HIP has known the legacy default stream as 1 since 6.2 only, and always as 0.
    legacy = 1 if machine.platform == "cuda" else 0
    machine.run("platforms/handles.py", "the_stream_is_set_on_every_checkout", name, legacy)


@parametrize(LIBRARIES)
def test_a_process_that_ends_destroys_nothing(machine, name):
    done = machine.start("platforms/destruction.py", "the_process_ends", name, FAKE_REPORT="1")
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    counts = dict(line.split() for line in done.stderr.splitlines())
    assert counts[LIBRARIES[name].create] == "3"
    assert LIBRARIES[name].destroy not in counts


@parametrize(LIBRARIES)
def test_every_status_of_a_creation_is_told(machine, name):
    machine.run("platforms/creation.py", "every_status_is_told", name, file_of(machine, name))


@parametrize(LIBRARIES)
def test_a_creation_without_memory_is_tried_again_once_idle_handles_are_gone(machine, name):
    machine.run("platforms/creation.py", "without_memory_idle_handles_go_first", name)


@parametrize(LIBRARIES)
def test_a_discarded_handle_is_nobodys_again_and_destroyed_once(machine, name):
    machine.run("platforms/destruction.py", "a_discarded_handle_is_nobodys_again_and_destroyed_once", name)


@parametrize(LIBRARIES)
def test_a_handle_that_cannot_be_destroyed_is_told_and_the_rest_are_destroyed(machine, name):
    machine.run("platforms/destruction.py", "one_that_cannot_be_destroyed_is_told_and_the_rest_are", name)


@parametrize(WITH_STREAM)
def test_a_stream_that_is_refused_is_told(machine, name):
    machine.run("platforms/handles.py", "a_stream_that_is_refused_is_told", name, file_of(machine, name))


@parametrize(LIBRARIES)
def test_a_capture_survives_a_first_handle(machine, name):
    trimmed = (0, 1) if name in SYNCHRONIZING else (1, 0)
    machine.run("platforms/handles.py", "a_capture_survives_a_first_handle", name, *trimmed)


@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_a_stream_of_another_device_is_refused(machine):
    machine.run("platforms/handles.py", "a_stream_of_another_device_is_refused")


MEMORY = pytest.mark.parametrize("virtual", ["0", "1"], ids=["segments", "virtual-memory"])


@MEMORY
@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_memory_can_be_written_and_comes_back(machine, virtual):
    machine.run("platforms/memory.py", "it_can_be_written_and_comes_back", FAKE_VMM=virtual)


@MEMORY
@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_pools_keep_their_memory_apart(machine, virtual):
    machine.run("platforms/memory.py", "pools_keep_theirs_apart", FAKE_VMM=virtual)


@MEMORY
@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_memory_that_runs_out_is_told(machine, virtual):
    functions = {"cuda": ["cuMemAlloc", "cuMemCreate"], "hip": ["hipMalloc", "hipMemCreate"]}[machine.platform]
    status = {"cuda": "CUDA_ERROR_OUT_OF_MEMORY", "hip": "hipErrorOutOfMemory"}[machine.platform]
    machine.run("platforms/memory.py", "that_runs_out_is_told", functions[int(virtual)], status, FAKE_VMM=virtual)


@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_free_pages_move_to_where_they_are_needed(machine):
    machine.run("platforms/memory.py", "free_pages_move_to_where_they_are_needed", FAKE_VMM="1")


@MEMORY
@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_memory_of_a_stream_that_is_gone_comes_back(machine, virtual):
    names = {"cuda": ("cuStreamCreate", "cuStreamDestroy_v2"), "hip": ("hipStreamCreateWithFlags", "hipStreamDestroy")}
    functions = names[machine.platform]
    machine.run("platforms/memory.py", "of_a_stream_that_is_gone_comes_back", *functions, FAKE_VMM=virtual)


@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_a_pool_sleeps_and_wakes(machine):
    machine.run("platforms/memory.py", "it_sleeps_and_wakes", FAKE_VMM="1")


@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_without_virtual_memory_no_pool_sleeps(machine):
    machine.run("platforms/memory.py", "without_virtual_memory_it_does_not_sleep", FAKE_VMM="0")


ASLEEP = {
    "cuda": ["cuCtxSynchronize", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuStreamCreate"],
    "hip": ["hipDeviceSynchronize", "hipMemcpyDtoHAsync", "hipMemcpyHtoDAsync", "hipStreamCreateWithFlags"],
}


@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_nothing_is_lost_asleep_when_the_driver_refuses(machine):
    status = {"cuda": "CUDA_ERROR_INVALID_VALUE", "hip": "hipErrorInvalidValue"}[machine.platform]
    functions = REFUSED["1"][machine.platform] + ASLEEP[machine.platform]
    machine.run("platforms/memory.py", "nothing_is_lost_asleep", status, *functions, FAKE_VMM="1")


REFUSED = {
    "0": {"cuda": ["cuMemAlloc_v2"], "hip": ["hipMalloc"]},
    "1": {
        "cuda": ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"],
        "hip": ["hipMemCreate", "hipMemMap", "hipMemSetAccess", "hipMemUnmap", "hipMemRelease"],
    },
}


@MEMORY
@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_nothing_is_lost_when_the_driver_refuses(machine, virtual):
    status = {"cuda": "CUDA_ERROR_INVALID_VALUE", "hip": "hipErrorInvalidValue"}[machine.platform]
    functions = REFUSED[virtual][machine.platform]
    machine.run("platforms/memory.py", "nothing_is_lost_when_the_driver_refuses", status, *functions, FAKE_VMM=virtual)


@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_a_second_device_gets_access(machine):
    machine.run("platforms/memory.py", "a_second_device_gets_access", FAKE_VMM="1")


@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_a_driver_with_fewer_addresses_gives_what_it_has(machine):
    function = {"cuda": "cuMemMap", "hip": "hipMemMap"}[machine.platform]
    program = ("platforms/memory.py", "a_driver_with_fewer_addresses_gives_what_it_has")
    machine.run(*program, function, FAKE_VMM="1", FAKE_ROOM_GIB="100")


COPIES = ["bytes_go_there_and_back", "pinned_memory_is_not_waited_for", "refusals_are_told"]


@pytest.mark.parametrize("function", COPIES)
@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_copies(machine, function):
    machine.run("platforms/copies.py", function, FAKE_DEVICES="2")


@MEMORY
@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_requests_beside_a_captured_blocking_stream(machine, virtual):
    machine.run("platforms/captures.py", "requests_do_not_fail_and_spoil_nothing", FAKE_VMM=virtual)


@pytest.mark.parametrize("machine", PLATFORMS, indirect=True)
def test_the_legacy_stream_beside_a_captured_blocking_one(machine):
    machine.run("platforms/captures.py", "what_would_use_the_legacy_stream_is_refused")
