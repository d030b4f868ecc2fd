"""What can be set can be read."""

import inspect

import gpupool
import pytest
from gpupool import worker
from own_memory import MIB

# What reads what each of these sets, by the names under `gpupool`.
GETTERS = {
    "HandlePool.limit": "HandlePool.limit",
    "HandlePool.set_mem_pool": "HandlePool.get_mem_pool",
    "MemPool.limit": "MemPool.limit",
    "enable_peer_access": "peers",
    "on_oom": "oom_callbacks",
    "record_memory_history": "get_memory_history",
    "set_neighbour": "neighbours",
    "set_per_process_memory_fraction": "get_per_process_memory_fraction",
    "set_pinned_limit": "get_pinned_limit",
}


def found(name):
    value = gpupool
    for part in name.split("."):
        value = inspect.getattr_static(value, part) if inspect.isclass(value) else getattr(value, part)
    return value


def test_each_setter_has_a_getter():
    classes = [gpupool.HandlePool, gpupool.MemPool, gpupool.DeviceBuffer, gpupool.PinnedBuffer, gpupool.Stream]
    names = [name for name in dir(gpupool) if name.startswith("set_")]
    names += [f"{owner.__name__}.{name}" for owner in classes for name in dir(owner) if name.startswith("set_")]
    assert set(names) <= GETTERS.keys()
    for setter, getter in GETTERS.items():
        assert found(setter) is not None
        assert found(getter) is not None


def test_the_limit_of_all_devices():
    settings = worker.Settings(memory_fraction=0.5, memory_bytes=64 * MIB)
    try:
        worker.set_up(settings)
        assert gpupool._native.get_memory_limit() == (0.5, 64 * MIB)
    finally:
        worker.tear_down()
    assert gpupool._native.get_memory_limit() == (None, None)


def test_the_fraction_of_each_device():
    try:
        gpupool.set_per_process_memory_fraction(0.25, 1)
        assert [gpupool.get_per_process_memory_fraction(device) for device in (0, 1)] == [1.0, 0.25]
    finally:
        gpupool.set_per_process_memory_fraction(1.0, 1)


def test_the_callbacks_in_the_order_in_which_they_are_called():
    def first(device, nbytes):
        return False

    class Second:
        def __call__(self, device, nbytes):
            return False

    before = gpupool.oom_callbacks()
    callbacks = [gpupool.on_oom(each) for each in (first, Second())]
    names = [first.__qualname__, "Second"]
    assert gpupool.oom_callbacks() == before + names
    callbacks[0].remove()
    assert gpupool.oom_callbacks() == before + names[1:]
    callbacks[1].remove()
    assert gpupool.oom_callbacks() == before


@pytest.mark.parametrize("enabled", ["all", "state"])
@pytest.mark.parametrize("context", [None, "state", "alloc", "all"])
def test_a_recording_can_be_begun_again_as_it_was(enabled, context):
    assert gpupool.get_memory_history() is None
    settings = {"enabled": enabled, "context": context, "max_entries": 77, "skip_actions": ["free_requested", "oom"]}
    try:
        gpupool.record_memory_history(**settings)
        told = gpupool.get_memory_history()
        assert {**told, "skip_actions": sorted(told["skip_actions"])} == settings
        gpupool.record_memory_history()
        assert gpupool.get_memory_history()["skip_actions"] == []
        gpupool.record_memory_history(**told)
        assert gpupool.get_memory_history() == told
    finally:
        gpupool.record_memory_history(None)
    assert gpupool.get_memory_history() is None


def test_peers():
    gpupool.enable_peer_access(1, 0)
    assert gpupool.peers(1) == [0]
    with pytest.raises(gpupool.InvalidValue, match="no device 7"):
        gpupool.peers(7)


def test_a_pool_that_no_handle_takes_memory_from():
    assert gpupool.simulated.get_mem_pool() is None
    with pytest.raises(gpupool.InvalidValue, match="no device 7"):
        gpupool.simulated.get_mem_pool(7)
