"""A worker process is set up by its description: before the first use, by its launcher, and not once it was forked."""

import multiprocessing
import os
import sys

import gpupool
from errors import assert_says, raised
from forking import exit_code_of
from gpupool import worker


def limits_start_no_driver_and_hold_for_devices_used_later():
    settings = worker.Settings(memory_bytes=8 << 20, handle_limits={"simulated": 3}, warm={"simulated": 1})
    worker.set_up(settings, before_devices=True)
    stats = worker.stats()
    told = stats["runtime"], stats["memory"], stats["handles"]
    assert told == (None, {}, {}), f"the limits started {told}"
    os.environ["GPUPOOL_RUNTIME"] = "host"
    for device in range(2):
        raised(gpupool.OutOfMemory, gpupool.empty, 16 << 20, gpupool.Stream(device))
        stats = worker.stats()
        told = stats["runtime"], list(stats["memory"])
        assert told == ("host", list(range(device + 1))), f"with device {device} in use is told {told}"


def any_launcher_can_set_its_workers_up_by_the_variable():
    with multiprocessing.get_context("spawn").Pool(1, initializer=worker.set_up) as pool:
        stats = pool.apply(worker.stats)
    fraction = stats["settings"]["memory_fraction"]
    assert fraction == 0.25, f"the worker has the fraction {fraction} of the memory"
    idle = stats["handles"]["simulated"]["idle"]
    assert idle == 2, f"the worker has {idle} idle handles"
    # Importing gpupool sets up nothing: the parent has the variable too.
    settings = worker.stats()["settings"]
    assert settings is None, f"the parent was set up: {settings}"


def a_forked_one_is_set_up_anew_and_fails_clearly_if_its_parent_used_the_gpu():
    settings = worker.Settings(handle_limits={"simulated": 3}, memory_bytes=1 << 20)
    worker.set_up(settings)
    child = os.fork()
    if child == 0:
        assert worker._setup is None, "the child has what its parent set up"
        worker.set_up(settings)
        os._exit(0)
    assert exit_code_of(child) == 0, "the child of a parent that did not use the GPU failed"
    gpupool.simulated.handle()
    child = os.fork()
    if child == 0:
        assert worker._setup is None, "the child has what its parent set up"
        assert_says(raised(worker.SetUpFailed, worker.set_up, settings), "limiting memory failed: Forked: ", "spawn")
        os._exit(0)
    assert exit_code_of(child) == 0, "the child of a parent that used the GPU failed"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
