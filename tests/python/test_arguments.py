"""Arguments of a wrong kind: a bool is no number, no device and no stream, and nothing that is wrong crashes."""

import gpupool
import pytest
from gpupool import _native


@pytest.mark.parametrize("wrong", [True, False, 1.0, "1", None])
def test_what_is_no_stream_is_refused_before_the_block(wrong):
    with pytest.raises(gpupool.InvalidValue, match=f"{type(wrong).__name__} is not a stream"):
        gpupool.stream(wrong)


@pytest.mark.parametrize("wrong", [True, False, 1.0, "1"])
def test_what_is_no_stream_is_refused_everywhere(make_pool, wrong):
    pool, mem_pool, buffer = make_pool(), gpupool.MemPool(), gpupool.empty(1000)
    for call in (
        lambda: pool.handle(wrong),
        lambda: pool.handle(stream=wrong),
        lambda: pool.lease(wrong),
        lambda: gpupool.empty(1, wrong),
        lambda: buffer.record_stream(wrong),
        lambda: buffer.free(wrong),
        lambda: mem_pool.capture(wrong),
    ):
        with pytest.raises(gpupool.InvalidValue, match="is not a stream"):
            call()
    buffer.free()


class Protocol:
    __cuda_stream__ = (0, True)


class Pointer:
    ptr = True


@pytest.mark.parametrize("stream", [Protocol(), Pointer()], ids=["__cuda_stream__", "ptr"])
def test_a_bool_is_no_address_of_a_stream(stream):
    with pytest.raises(gpupool.InvalidValue, match=r"__cuda_stream__ of|is not a stream"):
        gpupool.empty(1, stream)


def test_a_bool_of_a_stream_source_is_no_address():
    former = _native.set_stream_source(lambda device: True)
    try:
        with pytest.raises(gpupool.InvalidValue, match="returned True, not the address of a stream"):
            gpupool.empty(1)
    finally:
        _native.set_stream_source(former)


@pytest.mark.parametrize("wrong", [True, False, 0.0, "0"])
def test_what_is_no_device_is_refused_everywhere(make_pool, wrong):
    pool = make_pool()
    for call in (
        lambda: pool.handle(device=wrong),
        lambda: pool.lease(device=wrong),
        lambda: pool.trim(wrong),
        lambda: pool.stats(wrong),
        lambda: gpupool.Stream(wrong),
        lambda: gpupool.MemPool(device=wrong),
        lambda: gpupool.memory_stats(wrong),
        lambda: gpupool.enable_peer_access(0, wrong),
    ):
        with pytest.raises(gpupool.InvalidValue, match="device must be a whole number from 0"):
            call()


@pytest.mark.parametrize("wrong", [True, False])
def test_a_bool_is_no_count(make_pool, wrong):
    pool, mem_pool = make_pool(), gpupool.MemPool()
    for call in (
        lambda: pool.warm(wrong),
        lambda: setattr(pool, "limit", wrong),
        lambda: setattr(mem_pool, "limit", wrong),
        lambda: gpupool.empty(wrong),
        lambda: gpupool.MemPool(limit=wrong),
        lambda: gpupool.begin_allocate_to_pool(0, (0, wrong)),
        lambda: gpupool.record_memory_history(max_entries=wrong),
    ):
        with pytest.raises(gpupool.InvalidValue, match=f"{wrong} "):
            call()


@pytest.mark.parametrize("address", [0, 1, 8, 4096, 2**63, 2**64 - 1])
def test_the_simulation_is_asked_for_no_handle_that_is_not_there(address):
    with pytest.raises(gpupool.InvalidValue, match="not a live handle"):
        _native.host_stream_of(address)


def test_the_simulation_is_asked_for_no_handle_that_is_gone():
    with gpupool.host.lease() as lease:
        handle = int(lease)
        assert _native.host_stream_of(handle) == 0
        lease.discard()
    gpupool.host.trim()
    with pytest.raises(gpupool.InvalidValue, match="not a live handle"):
        _native.host_stream_of(handle)


# What is no stream that was made, and no device: numbers at edges, and what is no number.
WRONG = [-1, 77, 2**31, 2**32, 2**63, 2**64 - 1, 2**70, -1.0, float("nan"), float("inf"), 1e300, "x", b"", None, []]


@pytest.mark.parametrize("wrong", WRONG)
def test_controls_of_the_simulation_refuse_what_is_wrong(wrong):
    for control in (
        _native.host_submit,
        lambda stream: _native.host_complete(stream, 1),
        _native.host_begin_capture,
        _native.host_end_capture,
        _native.host_destroy_stream,
        _native.host_stream_of,
        _native.host_create_stream,
        _native.host_inject,
    ):
        with pytest.raises((gpupool.Error, TypeError, OverflowError)):
            control(wrong)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), 1e300, "x", None])
def test_controls_of_the_simulation_refuse_costs_that_cannot_be(wrong):
    for control in (_native.host_set_create_cost, lambda cost: _native.simulate_costly_handles(cost, 1)):
        with pytest.raises((gpupool.InvalidValue, TypeError)):
            control(wrong)


@pytest.mark.parametrize("number", [1 << 30, 1e9])
def test_a_number_is_no_allocator_of_a_pool(number):
    with pytest.raises(
        gpupool.InvalidValue,
        match=rf"allocator, and {number} is a number: was limit={number} meant".replace("+", r"\+"),
    ):
        gpupool.MemPool(number)
