"""Worker processes of a real Ray get what they are to have, and say what they have."""

import os
import subprocess
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path

import gpupool
import pytest
from gpupool.worker import Settings
from waiting import wait_until

ray = pytest.importorskip("ray")

MIB = 1 << 20
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_workers.py"


@contextmanager
def cluster(**runtime_env):
    """Start Ray with two worker processes, as small as can be."""
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * MIB,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env=runtime_env,
    )
    try:
        yield
    finally:
        ray.shutdown()


@pytest.fixture(scope="session", autouse=True)
def _quiet():
    """Let Ray tell nobody that it is used, and leave no token in the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
        yield


def make_actor():
    """Make an actor that allocates, and its class where it is pickled whole: workers do not find this file."""

    @ray.remote(num_cpus=1)
    class Actor:
        def warm(self):
            before = gpupool.worker.stats()
            gpupool.worker.warm()
            return before

        def use(self, nbytes):
            gpupool.empty(nbytes).free()
            return gpupool.memory_stats().peak_reserved_bytes

        def told(self):
            gpupool.empty(1).free()
            (this,) = (each for each in gpupool.neighbours() if each.is_self)
            return this.name, this.guarantee, this.most, this.priority

    return Actor.remote()


def is_dead(actor):
    """Return whether Ray knows that an actor is dead."""
    try:
        ray.get(actor.warm.remote(), timeout=100)
    except ray.exceptions.ActorUnavailableError:
        # The connection is gone; whether the actor is, Ray does not know yet.
        return False
    except ray.exceptions.ActorDiedError:
        return True
    return False


def kill(actor):
    """Kill an actor. `ray.kill` only asks for it, so the actor may answer some calls yet."""
    ray.kill(actor)
    wait_until(lambda: is_dead(actor), "the killed actor is dead")


@pytest.mark.thorough
def test_workers_have_what_they_are_to_have():
    settings = Settings(memory_bytes=8 * MIB, handle_limits={"simulated": 3}, warm={"simulated": 2}, guarantee=MIB)
    with cluster(worker_process_setup_hook=gpupool.ray.setup(settings)):
        actors = first, second = [make_actor() for _ in range(2)]
        # Ray is yet to say which devices a process has when it calls the hook, so that must ask no driver.
        before = ray.get([actor.warm.remote() for actor in actors], timeout=100)
        assert [(answer["runtime"], answer["handles"]) for answer in before] == [(None, {})] * 2
        peak = ray.get(first.use.remote(4 * MIB), timeout=100)
        with pytest.raises(gpupool.OutOfMemory, match="memory fraction is used up"):
            ray.get(second.use.remote(16 * MIB), timeout=100)

        stats = gpupool.ray.stats(actors)
        assert stats.keys() == {actor._actor_id.hex() for actor in actors}
        assert len({answer["process"] for answer in stats.values()} | {os.getpid()}) == 3
        for answer in stats.values():
            assert answer["settings"]["memory_bytes"] == 8 * MIB
            assert (answer["failure"], answer["runtime"]) == (None, "host")
            assert answer["handles"]["simulated"]["idle"] == 2
        assert stats[first._actor_id.hex()]["memory"][0]["peak_reserved_bytes"] == peak

        told = ray.get([actor.told.remote() for actor in actors], timeout=100)
        assert [rest for _, *rest in told] == [[MIB, None, 0]] * 2
        assert all(name.startswith("Ray worker ") for name, *_ in told)

        kill(second)
        stats = gpupool.ray.stats(actors)
        assert stats[first._actor_id.hex()]["failure"] is None
        assert "ActorDiedError" in stats[second._actor_id.hex()]["failure"]
        ray.kill(first)

        # One that waits for what no node has never answers.
        never = ray.remote(resources={"nothing": 1})(type("Never", (), {})).remote()
        answers = gpupool.ray.stats([never], timeout=0.0)
        assert answers[never._actor_id.hex()]["failure"].startswith("GetTimeoutError")

        # A process that runs tasks has the same, and tells it itself.
        answer = ray.get(ray.remote(lambda: gpupool.worker.stats()).remote(), timeout=100)
        assert answer["settings"]["handle_limits"] == {"simulated": 3}


@pytest.mark.thorough
def test_a_worker_that_fails_is_named_with_what_failed_and_the_cluster_works_on():
    # What is wrong with it is known in the worker alone.
    environment = {"GPUPOOL_WORKER": '{"warn": {}}'}
    with cluster(worker_process_setup_hook=gpupool.ray.setup(), env_vars=environment):
        actor = make_actor()
        with pytest.raises(ray.exceptions.ActorDiedError) as caught:
            ray.get(actor.warm.remote(), timeout=100)
        assert "SetUpFailed: Ray worker " in str(caught.value)
        assert "reading the settings failed: InvalidValue: GPUPOOL_WORKER: " in str(caught.value)
        assert "ActorDiedError" in gpupool.ray.stats([actor])[actor._actor_id.hex()]["failure"]
        with pytest.raises(ray.exceptions.WorkerCrashedError):
            ray.get(ray.remote(max_retries=0)(lambda: 1).remote(), timeout=100)
        assert len(ray.nodes()) == 1
        assert ray.nodes()[0]["Alive"]


@pytest.mark.thorough
def test_the_environment_alone_can_say_what_workers_have():
    # A runtime that cannot be had shows that the hook asks for none.
    environment = {
        "GPUPOOL_WORKER": Settings(
            memory_fraction=0.5, handle_limits={"simulated": 5}, warm={"simulated": 1}
        ).to_json(),
        "GPUPOOL_RUNTIME": "nothing",
    }
    with cluster(worker_process_setup_hook="gpupool.ray.from_environment", env_vars=environment):
        actor = make_actor()
        (answer,) = gpupool.ray.stats([actor], timeout=100).values()
        assert answer["settings"]["handle_limits"] == {"simulated": 5}
        with pytest.raises(gpupool.worker.SetUpFailed, match="making 1 handles of simulated failed: InvalidValue: "):
            ray.get(actor.warm.remote(), timeout=100)
        assert "InvalidValue" in gpupool.ray.stats([actor])[actor._actor_id.hex()]["failure"]


@pytest.mark.thorough
def test_the_example_runs_without_a_gpu():
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    first, *actors = done.stdout.splitlines()
    assert first == "calls  16 to 2 actors"
    assert [line.split("  ")[1] for line in actors] == ["host", "host"]
    assert all("peak reserved" in line and line.endswith("handles created 1") for line in actors)
