"""Workers of a real Dask cluster get what they are to have, and say what they have."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import gpupool
import pytest
from gpupool.worker import Settings, SetUpFailed

dask = pytest.importorskip("dask")
# Workers are forks of a process that has imported Dask, and not new interpreters.
dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
distributed = pytest.importorskip("distributed")
Client, LocalCluster = distributed.Client, distributed.LocalCluster

MIB = 1 << 20
EXAMPLE = Path(__file__).parents[2] / "examples" / "dask_workers.py"
# Small, on ports that are free, and with time for slow machines.
SMALL = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
PROCESSES = {**SMALL, "processes": True, "host": "127.0.0.1"}
THREADS = {**SMALL, "processes": False, "protocol": "inproc://"}


@pytest.fixture(scope="module")
def processes():
    """Start two workers, each a process of its own with a nanny."""
    with LocalCluster(**PROCESSES) as cluster, Client(cluster, timeout=60) as client:
        yield client


@pytest.fixture
def client(processes):
    """Give two workers in processes of their own, and take the plugin away afterwards."""
    yield processes
    if any(answer["settings"] for answer in gpupool.dask.stats(processes).values()):
        processes.unregister_worker_plugin("gpupool")


def restart(client):
    """Start all workers again, and wait until each has run a task: it is set up before that."""
    client.restart(timeout=100)
    client.wait_for_workers(2, timeout=100)
    for address in client.scheduler_info()["workers"]:
        client.submit(os.getpid, workers=[address], pure=False).result(timeout=60)


def test_every_worker_has_what_it_is_to_have(client):
    settings = Settings(memory_bytes=8 * MIB, handle_limits={"simulated": 3}, warm={"simulated": 2})
    client.register_plugin(gpupool.dask.Plugin(settings))
    stats = gpupool.dask.stats(client)
    assert stats.keys() == client.scheduler_info()["workers"].keys()
    assert len({answer["process"] for answer in stats.values()} | {os.getpid()}) == 3
    for answer in stats.values():
        assert answer["settings"]["memory_bytes"] == 8 * MIB
        assert (answer["failure"], answer["runtime"]) == (None, "host")
        assert answer["handles"]["simulated"]["idle"] == 2
    assert set(client.run(lambda: gpupool.simulated.limit).values()) == {3}


def test_a_framework_is_enabled_on_every_worker_until_the_plugin_goes(client):
    pytest.importorskip("cupy")

    def has_own_allocator():
        import cupy

        return cupy.cuda.get_allocator() == cupy.get_default_memory_pool().malloc

    client.register_plugin(gpupool.dask.Plugin(Settings(enable=["cupy"])))
    assert list(client.run(has_own_allocator).values()) == [False, False]
    client.unregister_worker_plugin("gpupool")
    assert list(client.run(has_own_allocator).values()) == [True, True]


def test_tasks_run_within_the_limits_and_their_memory_is_told(client):
    def use(nbytes):
        gpupool.empty(nbytes).free()
        return gpupool.memory_stats().peak_reserved_bytes

    client.register_plugin(gpupool.dask.Plugin(Settings(memory_bytes=8 * MIB)))
    first, second = client.scheduler_info()["workers"]
    peak = client.submit(use, 4 * MIB, workers=first, pure=False).result(timeout=60)
    with pytest.raises(gpupool.OutOfMemory) as caught:
        client.submit(use, 16 * MIB, workers=second, pure=False).result(timeout=60)
    assert caught.value.requested_bytes == 16 * MIB
    assert gpupool.dask.stats(client)[first]["memory"][0]["peak_reserved_bytes"] == peak


def test_workers_are_neighbours_with_the_numbers_of_their_settings(client):
    def told():
        (this,) = (each for each in gpupool.neighbours() if each.is_self)
        return this.name, this.guarantee, this.most, this.priority

    client.run(gpupool.set_neighbour, "before", priority=3)
    before = client.run(told)
    client.register_plugin(gpupool.dask.Plugin(Settings(guarantee=MIB, most=8 * MIB, priority=-1)))
    assert client.run(told) == {address: (f"Dask worker {address}", MIB, 8 * MIB, -1) for address in before}
    client.unregister_worker_plugin("gpupool")
    assert client.run(told) == before


def test_the_same_plugin_again_changes_nothing_and_another_replaces_it(client):
    def limits():
        return gpupool.simulated.limit, gpupool._native.set_memory_limit(None, None)

    client.register_plugin(gpupool.dask.Plugin(Settings(handle_limits={"simulated": 3})))
    client.register_plugin(gpupool.dask.Plugin(Settings(handle_limits={"simulated": 3})))
    assert set(client.run(lambda: gpupool.simulated.limit).values()) == {3}
    client.register_plugin(gpupool.dask.Plugin(Settings(memory_fraction=0.5)))
    assert set(client.run(limits).values()) == {(None, (0.5, None))}
    client.unregister_worker_plugin("gpupool")
    assert all(answer["settings"] is None for answer in gpupool.dask.stats(client).values())


def test_a_worker_that_starts_again_is_set_up_again(client):
    client.register_plugin(gpupool.dask.Plugin(Settings(handle_limits={"simulated": 3}, warm={"simulated": 1})))
    before = {answer["process"] for answer in gpupool.dask.stats(client).values()}
    restart(client)
    after = gpupool.dask.stats(client).values()
    assert len(after) == 2
    assert not before & {answer["process"] for answer in after}
    assert [answer["handles"]["simulated"]["idle"] for answer in after] == [1, 1]


def test_a_worker_that_fails_is_named_and_the_cluster_works_on(client):
    with pytest.raises(SetUpFailed, match=r"making 1 handles of cudnn failed: RuntimeUnavailable: ") as caught:
        client.register_plugin(gpupool.dask.Plugin(Settings(warm={"cudnn": 1}, handle_limits={"simulated": 3})))
    assert any(f"Dask worker {address} (process" in str(caught.value) for address in gpupool.dask.stats(client))

    # Those that start later fail without a client to tell, and say so when asked.
    restart(client)
    for address, answer in gpupool.dask.stats(client).items():
        assert answer["settings"] is None
        assert answer["failure"].startswith(f"Dask worker {address} (process {answer['process']} on ")
    assert client.submit(lambda: gpupool.simulated.limit, pure=False).result(timeout=60) is None

    client.register_plugin(gpupool.dask.Plugin(Settings(handle_limits={"simulated": 3})))
    assert {answer["failure"] for answer in gpupool.dask.stats(client).values()} == {None}


def test_a_worker_that_cannot_answer_keeps_no_answer_back(client):
    first, second = client.scheduler_info()["workers"]

    def break_stats():
        def stats():
            raise gpupool.Forked("forked")

        gpupool.worker.stats, kept = stats, gpupool.worker.stats
        gpupool.worker._kept = kept

    def mend_stats():
        gpupool.worker.stats = gpupool.worker._kept

    client.run(break_stats, workers=[first])
    try:
        stats = gpupool.dask.stats(client)
    finally:
        client.run(mend_stats, workers=[first])
    assert stats[first] == {"failure": "Forked: forked"}
    assert stats[second]["failure"] is None


def test_workers_of_one_process_share_it_and_the_last_ends_it():
    with LocalCluster(**THREADS) as cluster, Client(cluster, timeout=60) as client:
        client.register_plugin(gpupool.dask.Plugin(Settings(handle_limits={"simulated": 3})))
        stats = gpupool.dask.stats(client)
        assert {answer["process"] for answer in stats.values()} == {os.getpid()}
        first = next(iter(stats))
        client.run(lambda dask_worker: dask_worker.plugins["gpupool"].teardown(dask_worker), workers=[first])
        assert gpupool.simulated.limit == 3
    assert gpupool.simulated.limit is None


def test_a_preload_module_sets_a_worker_up_as_its_environment_says():
    environment = {"GPUPOOL_WORKER": Settings(handle_limits={"simulated": 5}).to_json()}
    with LocalCluster(preload=["gpupool.dask"], env=environment, **{**PROCESSES, "n_workers": 1}) as cluster:
        # Nothing is set up where the module is imported alone: here, and in the nanny.
        assert gpupool.worker.stats()["settings"] is None
        with Client(cluster, timeout=60) as client:
            (answer,) = gpupool.dask.stats(client).values()
            assert answer["settings"]["handle_limits"] == {"simulated": 5}


def test_an_asynchronous_client_awaits_the_answers():
    async def ask():
        async with (
            LocalCluster(asynchronous=True, **THREADS) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            await client.register_plugin(gpupool.dask.Plugin(Settings(handle_limits={"simulated": 3})))
            return await gpupool.dask.stats(client)

    answers = asyncio.run(ask())
    assert [answer["settings"]["handle_limits"] for answer in answers.values()] == [{"simulated": 3}] * 2


def test_the_example_runs_without_a_gpu():
    command = [sys.executable, str(EXAMPLE)]
    environment = {**os.environ, "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    first, *workers = done.stdout.splitlines()
    assert first.startswith("tasks  16 in ")
    assert len(workers) == 2
    assert all("  host  peak reserved" in line and "handles created" in line for line in workers)
