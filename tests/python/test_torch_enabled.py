"""gpupool.torch.enable() and disable() with the library compiled here, over PyTorch's real libraries.

PyTorch's oldest and newest version that gpupool knows; the devices are doubles.
"""

import pytest
from pytorch.fetch import VERSIONS
from running import functions_of
from torch_machine import COMPILED, TorchMachine

# What runs without a cache.
OF_ITS_OWN = ["as_it_comes_with_gpupool", "for_another_version"]


@pytest.fixture(scope="module", params=[VERSIONS[0], VERSIONS[-1]])
def machine(request):
    machine = TorchMachine(request.param)
    machine.build()
    return machine


# The first of a version may fetch and compile.
@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", functions_of("frameworks/torch_enabled.py", *OF_ITS_OWN))
def test_it_is_enabled(machine, what):
    cache = COMPILED / "cache"
    machine.run(what, "frameworks/torch_enabled.py", XDG_CACHE_HOME=str(cache))
    assert list(cache.glob(f"gpupool/torch/allocator-{machine.version}.*.so"))


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", OF_ITS_OWN)
def test_the_library_that_is_there_is_looked_at(machine, what):
    machine.run(what, "frameworks/torch_enabled.py")
