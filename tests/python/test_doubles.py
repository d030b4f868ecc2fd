"""What the ABI doubles refuse. The other tests rely on it: what they don't see refused was not done."""

import pytest
from forks import Machine
from programs.shared.libraries import LIBRARIES

# What is called on each platform, and what the double says of it.
WRONG = {
    "cuda": [
        (("a_driver_s", "cuMemFree_v2", 4096), "cuMemFree_v2: 0x1000 is no memory, or no longer"),
        (("a_driver_s", "cuMemUnmap", 1 << 30, 1 << 21), "cuMemUnmap: 0x40000000 is no mapping, or no longer"),
        (("a_driver_s", "cuMemRelease", 7), "cuMemRelease: 0x7 is no physical memory, or no longer"),
        (("a_driver_s", "cuEventQuery", 64), "cuEventQuery: 0x40 is no event, or no longer"),
        (("a_driver_s", "cuStreamQuery", 64), "cuStreamQuery: 0x40 is no stream, or no longer"),
        (("a_driver_s", "cuCtxSetCurrent", 64), "cuCtxSetCurrent: 0x40 is no context"),
        (("an_event_of_another_device", "cuEventCreate", "cuEventRecord"), "cuEventRecord: a stream of device 1"),
    ],
    "hip": [
        (("a_driver_s", "hipFree", 4096), "hipFree: 0x1000 is no memory, or no longer"),
        (("a_driver_s", "hipMemUnmap", 1 << 30, 1 << 21), "hipMemUnmap: 0x40000000 is no mapping, or no longer"),
        (("a_driver_s", "hipMemRelease", 7), "hipMemRelease: 0x7 is no physical memory, or no longer"),
        (("a_driver_s", "hipEventQuery", 64), "hipEventQuery: 0x40 is no event, or no longer"),
        (("a_driver_s", "hipStreamQuery", 1), "hipStreamQuery: hipStreamLegacy, which HIP 6.1 does not know"),
        (("hips_memory_of_another_device",), "hipFree: memory of device 0"),
        (
            ("an_event_of_another_device", "hipEventCreateWithFlags", "hipEventRecord"),
            "hipEventRecord: a stream of device 1",
        ),
    ],
}


def assert_aborts(machine, call, said):
    """Check that the double ends the process at a call, and says why."""
    done = machine.start("platforms/wrong_calls.py", *call, FAKE_VMM="1")
    assert done.returncode == -6, done.stderr
    assert done.stderr.startswith(f"double: {said}")


@pytest.mark.parametrize(
    ("platform", "call", "said"), [(platform, *wrong) for platform, all_ in WRONG.items() for wrong in all_]
)
def test_a_driver_aborts_at_a_call_that_cannot_be_right(tmp_path, platform, call, said):
    machine = Machine(platform, tmp_path)
    assert_aborts(machine, call, said)


def test_cudss_aborts_at_a_handler_that_cannot_be_used(tmp_path):
    machine = Machine("cuda", tmp_path)
    machine.install("cudss")
    function = "cudssSetDeviceMemHandler"
    assert_aborts(machine, ["a_second_handler_of_cudss"], f"{function}: a second handler, with the first still there")
    assert_aborts(machine, ["a_handler_of_cudss_that_is_not_whole"], f"{function}: no whole handler")


@pytest.mark.parametrize("name", ["cudnn", "miopen", "hipsparse"])
def test_a_library_aborts_at_a_handle_that_cannot_be_used(tmp_path, name):
    library = LIBRARIES[name]
    set_stream = library.symbols["SET_STREAM"]
    machine = Machine("cuda" if name == "cudnn" else "hip", tmp_path)
    machine.install(name)
    for call, said in [
        ("a_handle_destroyed_twice", f"{library.destroy}: "),
        ("a_destroyed_handle_set_to_a_stream", f"{set_stream}: "),
        (
            "a_handle_set_to_a_stream_of_another_device",
            f"{set_stream}: a stream of device 1 on a handle of device 0",
        ),
        ("a_handle_set_to_no_stream", f"{set_stream}: 0x1000 is no stream, or no longer"),
        (
            "a_handle_destroyed_with_another_device_current",
            f"{library.destroy}: a handle of device 0 with device 1 current",
        ),
    ]:
        assert_aborts(machine, [call, name], said)
