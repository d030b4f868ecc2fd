"""gpupool on every worker process of a Ray job.

>>> settings = gpupool.worker.Settings(enable=["cupy"], memory_fraction=0.9, warm={"cublas": 2})
>>> ray.init(runtime_env={"worker_process_setup_hook": gpupool.ray.setup(settings)})
>>> gpupool.ray.stats(actors)  # {actor's id: what gpupool.worker.stats() returns there}

Ray calls the hook when a process starts, but assigns GPUs to it only with the first task, by ``CUDA_VISIBLE_DEVICES``;
a driver that was initialised before would see all of them. So the hook does not initialise the driver, and warm handles
are created by ``gpupool.worker.warm()``: call it first in an actor's ``__init__``, or in a task. Limit memory by the
settings, not by CuPy's ``CUPY_GPU_MEMORY_LIMIT``, for which the driver is called when CuPy is enabled.

If you cannot change the job's code, ``"worker_process_setup_hook": "gpupool.ray.from_environment"`` uses the settings
in ``GPUPOOL_WORKER``, which you can pass in ``"env_vars"`` of the same ``runtime_env``.

https://docs.ray.io/en/latest/ray-core/api/runtime-env.html
"""

from collections.abc import Callable, Sequence
from typing import Any

from gpupool import worker
from gpupool._frameworks.plug import require, wrong
from gpupool.worker import Settings

__all__ = ["from_environment", "setup", "stats"]


def setup(settings: Settings | None = None) -> Callable[[], None]:
    """Return the hook that sets up a worker process; without settings it reads the process's ``GPUPOOL_WORKER``.

    A process that cannot be set up ends, and the actor that it was started for fails with Ray's ``ActorDiedError``,
    whose message says which worker it was and what failed. A task fails with ``WorkerCrashedError``, and Ray prints the
    message.
    """
    worker._check(settings)

    # A function rather than a partial object, since Ray reads its __name__.
    def gpupool_setup() -> None:
        _set_up(settings)

    return gpupool_setup


def from_environment() -> None:
    """Set this worker process up with the settings in ``GPUPOOL_WORKER``. Ray finds this hook by its name."""
    _set_up(None)


def _set_up(settings: Settings | None) -> None:
    import ray

    name = f"Ray worker {ray.get_runtime_context().get_worker_id()}"
    worker.set_up(settings, worker=name, before_devices=True)


def _stats(_actor: Any) -> dict[str, Any]:
    return worker.stats_or_failure()


def stats(actors: Sequence[Any], timeout: float = 60.0) -> dict[str, dict[str, Any]]:
    """Return what :func:`gpupool.worker.stats` returns in each actor's process, by the actor's id in hexadecimal.

    The calls wait for the actors' earlier calls. An actor that is dead, or not done in time, has only ``failure``. A
    process that runs only tasks cannot be asked from outside: let the task return ``gpupool.worker.stats()``.

    Args:
        actors: The actors.
        timeout: How many seconds to wait for all of them together.

    Raises:
        gpupool.LibraryNotFound: Ray is missing.
    """
    ray = require("ray", (2, 10), "ray")
    if isinstance(actors, str) or not all(hasattr(actor, "_actor_id") for actor in actors):
        raise wrong("actors", actors, "a list of handles of actors")
    asked = {actor._actor_id.hex(): actor.__ray_call__.remote(_stats) for actor in actors}
    if asked:
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=timeout)
    found = {}
    for actor, reply in asked.items():
        try:
            found[actor] = ray.get(reply, timeout=0)
        except ray.exceptions.RayError as error:
            found[actor] = {"failure": f"{type(error).__name__}: {error}"}
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
