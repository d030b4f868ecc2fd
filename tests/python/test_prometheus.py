"""Statistics for Prometheus: valid by prometheus_client's own parsers, the same by text and collector, and bounded."""

import gc
import importlib
import re

import gpupool
import pytest
from gpupool import prometheus
from running import run_bare_program, run_program

MIB = 1 << 20


@pytest.fixture
def client():
    """Return prometheus_client, which only these tests need, or skip."""
    return pytest.importorskip("prometheus_client")


def parsed(text):
    """Return families by name, as prometheus_client reads them."""
    parser = importlib.import_module("prometheus_client.parser")
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def values(text, name, **labels):
    """Return the samples of one metric with these labels: what is left of the labels, and the value."""
    found = {}
    for family in parsed(text).values():
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                rest = tuple(value for label, value in sample.labels.items() if label not in labels)
                found[rest] = sample.value
    return found


@pytest.fixture
def busy(nothing_left):
    """Use memory in a pool with a limit and in the default one, on two streams, and handles."""
    gc.collect()
    streams = [gpupool.Stream(), gpupool.Stream()]
    pool = gpupool.MemPool(limit=64 * MIB)
    with gpupool.use_mem_pool(pool):
        buffers = [gpupool.empty(3 * MIB, streams[0]), gpupool.empty(1000, streams[1])]
    buffers.append(gpupool.empty(MIB, streams[0]))
    buffers.append(gpupool.empty_pinned(5 * MIB))
    gpupool.set_pinned_limit(64 * MIB)
    gpupool.simulated.warm(2)
    with gpupool.simulated.lease(streams[0]):
        # Not the pool itself, which pytest would keep until what was left is looked at.
        yield pool.id
    gpupool.simulated.trim()
    gpupool.set_pinned_limit(None)
    del pool, buffers


def test_the_text_is_valid_and_says_what_the_summary_says(client, busy):
    text = prometheus.text()
    (device, *_) = gpupool.memory_summary().devices
    assert values(text, "gpupool_up") == {(): 1}
    assert values(text, "gpupool_info") == {("host", gpupool.__version__): 1}
    held = values(text, "gpupool_device_memory_bytes", device="0")
    assert held == {
        ("live",): device.live_bytes,
        ("cached",): device.cached_bytes,
        ("releasing",): 0,
        ("handles",): device.handle_bytes,
        ("workspaces",): 0,
        ("other",): device.other_bytes,
    }
    capacity = values(text, "gpupool_device_memory_capacity_bytes", device="0")[()]
    free = values(text, "gpupool_device_memory_free_bytes", device="0")[()]
    assert sum(held.values()) == capacity - free
    pool = {"device": "0", "pool": str(busy)}
    assert values(text, "gpupool_pool_memory_bytes", **pool)[("live",)] == 3 * MIB + 1024
    assert values(text, "gpupool_pool_memory_requested_bytes", **pool) == {(): 3 * MIB + 1000}
    assert values(text, "gpupool_pool_memory_limit_bytes") == {("0", str(busy)): 64 * MIB}
    pinned = gpupool.pinned_stats(0)
    held = values(text, "gpupool_pinned_memory_bytes", numa="0")
    assert held == {("live",): pinned.live_bytes, ("cached",): pinned.cached_bytes, ("releasing",): 0}
    assert pinned.live_bytes >= 5 * MIB
    assert values(text, "gpupool_pinned_memory_limit_bytes") == {(): 64 * MIB}
    stats = gpupool.simulated.stats(0)
    library = {"device": "0", "library": "simulated"}
    states = values(text, "gpupool_handles", **library)
    assert states == {("idle",): stats.idle, ("held",): stats.held, ("leased",): 1, ("discarded",): stats.discarded}
    assert values(text, "gpupool_handles_created_total", **library) == {(): stats.created}
    assert values(text, "gpupool_handle_create_seconds_total", **library) == {(): stats.create_seconds}


def test_failed_requests_and_pages_of_ranges_are_counted(client, nothing_left):
    pool = gpupool.MemPool(limit=8 * MIB)
    pages = pool.reserve_range(16 * MIB)
    pages.commit([0, 2])
    before = gpupool.memory_stats()
    with gpupool.use_mem_pool(pool), pytest.raises(gpupool.OutOfMemory):
        gpupool.empty(16 * MIB)
    after = gpupool.memory_stats()
    assert after.failures == before.failures + 1
    assert after.retries >= before.retries
    text = prometheus.text()
    assert values(text, "gpupool_device_failures_total", device="0") == {(): after.failures}
    assert values(text, "gpupool_device_retries_total", device="0") == {(): after.retries}
    ranges = values(text, "gpupool_pool_memory_ranges_bytes", device="0")
    assert (ranges[("default",)], ranges[(str(pool.id),)]) == (0, 4 * MIB)
    assert values(prometheus.text(pools=1), "gpupool_pool_memory_ranges_bytes", device="0")[("others",)] == 4 * MIB
    shown = str(gpupool.memory_summary(0))
    assert re.search(rf"^failed requests +{after.failures} +for lack of memory$", shown, re.MULTILINE)
    pages.free()


def test_every_metric_has_its_type_and_meaning_and_follows_the_conventions(client, busy):
    families = parsed(prometheus.text(streams=2))
    assert set(prometheus.METRICS) - {"gpupool_framework_memory_reserved_bytes"} == {
        f"{family.name}_total" if family.type == "counter" else family.name for family in families.values()
    }
    for name, (kind, meaning) in prometheus.METRICS.items():
        assert name.startswith("gpupool_")
        assert name.endswith("_total") == (kind == "counter")
        assert meaning.endswith(".")
        family = families.get(name.removesuffix("_total"))
        if family is not None:
            assert (family.documentation, family.type) == (meaning, "gauge" if kind == "info" else kind)


def test_the_collector_says_the_same_as_the_text(client, busy):
    registry = client.CollectorRegistry()
    registry.register(prometheus.Collector(pools=3, streams=2))
    served = client.generate_latest(registry).decode()

    def samples(text):
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in parsed(text).values()
            for sample in family.samples
        }

    assert samples(served) == samples(prometheus.text(pools=3, streams=2))
    openmetrics = importlib.import_module("prometheus_client.openmetrics.exposition").generate_latest(registry).decode()
    read = importlib.import_module("prometheus_client.openmetrics.parser").text_string_to_metric_families(openmetrics)
    assert {sample.name for family in read for sample in family.samples} == {key[0] for key in samples(served)}


def test_one_collector_is_registered_once_and_tells_its_names_without_gathering(client, monkeypatch):
    registry = client.CollectorRegistry(auto_describe=True)
    collector = prometheus.Collector()

    def fail(*_):
        raise AssertionError("gathered to be registered")

    with monkeypatch.context() as context:
        context.setattr(prometheus, "_samples", fail)
        registry.register(collector)
        with pytest.raises(ValueError, match="gpupool_device_memory_bytes"):
            registry.register(prometheus.Collector())
    registry.unregister(collector)
    registry.register(prometheus.Collector())


def test_pools_beyond_the_largest_are_one_series(client, nothing_left):
    stream = gpupool.Stream()
    pools, buffers = [gpupool.MemPool() for _ in range(30)], []
    for number, pool in enumerate(pools):
        with gpupool.use_mem_pool(pool):
            buffers.append(gpupool.empty((2 * number + 1) * MIB, stream))
    all_live = sum(pool.live_bytes for pool in gpupool.memory_summary(0).devices[0].pools)
    for count in (0, 1, 4, 20):
        live = values(prometheus.text(pools=count), "gpupool_pool_memory_bytes", device="0", state="live")
        assert len(live) == count + 1
        assert sum(live.values()) == all_live
        assert ("others",) in live
        assert count == 0 or ("default",) in live
    largest = {(str(pool.id),) for pool in pools[-3:]}
    assert values(prometheus.text(pools=4), "gpupool_pool_memory_limit_bytes") == {}
    peaks = values(prometheus.text(pools=4), "gpupool_pool_memory_peak_live_bytes", device="0")
    assert peaks.keys() == {("default",), *largest}
    del buffers


def test_what_is_asleep_is_told_apart_from_what_the_device_has(client, nothing_left):
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        buffer = gpupool.empty(3 * MIB, gpupool.Stream())
    labels = {"device": "0", "pool": str(pool.id)}

    def told():
        text = prometheus.text()
        sizes = ("gpupool_pool_memory_asleep_bytes", "gpupool_pool_memory_backup_bytes")
        held = values(text, "gpupool_pool_memory_bytes", **labels)
        return (held[("live",)], *(values(text, name, **labels)[()] for name in sizes))

    assert told() == (3 * MIB, 0, 0)
    pool.sleep()
    live, asleep, backup = told()
    assert (live, asleep) == (0, 3 * MIB)
    assert backup >= 3 * MIB
    pool.wake()
    assert told() == (3 * MIB, 0, 0)
    del buffer


def test_streams_have_series_only_if_asked(client, busy):
    for _ in range(50):
        gpupool.empty(MIB, gpupool.Stream()).free()
    assert "stream=" not in prometheus.text()
    live = values(prometheus.text(streams=2), "gpupool_stream_memory_bytes", device="0", state="live")
    assert len(live) == 2
    assert 3 * MIB in live.values()


def test_counters_do_not_go_back_when_pools_go(client, nothing_left):
    def allocations():
        return values(prometheus.text(), "gpupool_device_allocations_total", device="0").get((), 0)

    stream = gpupool.Stream()
    gpupool.empty(1, stream).free()
    before = allocations()
    for _ in range(3):
        with gpupool.use_mem_pool(gpupool.MemPool()):
            gpupool.empty(MIB, stream).free()
        gc.collect()
    assert allocations() == before + 3


@pytest.mark.parametrize("number", [-1, 1.5, "2", None])
def test_numbers_that_cannot_be_right_are_refused(client, number):
    for name in ("pools", "streams"):
        with pytest.raises(gpupool.InvalidValue, match=f"{name} must be a whole number from 0 .*, not {number!r}"):
            prometheus.text(**{name: number})
        with pytest.raises(gpupool.InvalidValue, match=name):
            prometheus.Collector(**{name: number})


def test_a_driver_that_does_not_answer_leaves_the_rest(client, busy):
    gpupool._native.host_inject("MemoryInfo", times=2)
    text = prometheus.text()
    assert values(text, "gpupool_device_memory_free_bytes") == {}
    assert ("other",) not in values(text, "gpupool_device_memory_bytes", device="0")
    assert values(text, "gpupool_device_memory_bytes", device="0")[("live",)] > 0


def test_a_scrape_starts_no_driver():
    # A runtime that cannot be had shows that none is asked for.
    run_program("telling/scrapes.py", "starts_no_driver", GPUPOOL_RUNTIME="nothing")


def test_a_forked_child_says_that_it_cannot_tell_and_serves_the_rest(client):
    run_program("telling/scrape_of_a_fork.py")


def test_without_prometheus_client_it_says_how_to_get_it():
    run_bare_program("importing/missing.py", "prometheus_client", "pip install 'prometheus-client'")
