"""A worker process is set up by its description: before the first use, by its launcher, and not once it was forked."""

import multiprocessing
import os

import gpupool
from errors import assert_says, raised
from forking import exit_code_of
from gpupool import worker
from other_process import other_process

MIB = 1 << 20


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


def told(device=0):
    """Return what the neighbours are told of this process."""
    (this,) = (each for each in gpupool.neighbours(device) if each.is_self)
    return this.name, this.guarantee, this.most, this.priority


def it_is_a_neighbour_on_every_device_until_the_end():
    gpupool.set_neighbour("before", MIB, 2 * MIB, 3)
    before = [told(device) for device in range(2)]
    worker.set_up(worker.Settings(guarantee=4 * MIB), worker="node 5")
    assert [told(device) for device in range(2)] == [("node 5", 4 * MIB, None, 0)] * 2
    worker.set_up(worker.Settings(most=8 * MIB, priority=-2, name="trainer"))
    assert [told(device) for device in range(2)] == [("trainer", 0, 8 * MIB, -2)] * 2
    worker.tear_down()
    assert [told(device) for device in range(2)] == before


def set_up_before_devices(kept, fields):
    kept["settings"] = worker.Settings(**fields)
    worker.set_up(kept["settings"], worker="node 5", before_devices=True)
    return worker.stats()["runtime"]


def use_a_device(kept):
    kept["buffer"] = gpupool.empty(1)


def warm(kept):
    worker.warm()
    return told(1)


def tear_down(kept):
    worker.tear_down()
    return {name: value for name, value in os.environ.items() if name.startswith("GPUPOOL_NEIGHBOUR")}, told(1)


def before_devices_it_becomes_one_with_the_first_that_it_uses():
    variables = {name: value for name, value in os.environ.items() if name.startswith("GPUPOOL_NEIGHBOUR")}
    with other_process() as other:
        runtime = other.call(set_up_before_devices, {"guarantee": 4 * MIB, "priority": -2, "most": 2**63 - 1})
        assert runtime is None, f"the settings started {runtime}"
        assert not gpupool.neighbours()
        other.call(use_a_device)
        (it,) = (each for each in gpupool.neighbours() if not each.is_self)
        assert (it.name, it.guarantee, it.most, it.priority) == ("node 5", 4 * MIB, 2**47, -2)
        assert other.call(warm) == ("node 5", 4 * MIB, 2**63 - 1, -2)
        left, _ = other.call(tear_down)
        assert left == variables, left


def without_such_a_setting_it_is_none():
    worker.set_up(worker.Settings(memory_bytes=8 * MIB))
    gpupool.empty(1).free()
    with other_process() as other:
        others = other.call(count_others)
        assert others == 0, f"{others} neighbours without a setting that makes one"
        worker.set_up(worker.Settings(guarantee=0))
        assert other.call(count_others) == 1


def count_others(kept):
    return sum(not each.is_self for each in gpupool.neighbours())


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
