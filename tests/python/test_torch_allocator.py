"""gpupool in the place of PyTorch's CUDA allocator, on the oldest and the newest version that gpupool knows.

Calls go through PyTorch's real libraries, to its own allocator and to gpupool, on the same devices: doubles.
"""

import re

import pytest
from pytorch.fetch import VERSIONS
from running import PROGRAMS
from torch_machine import TorchMachine

FUNCTIONS = [
    (program.stem, function)
    for program in sorted((PROGRAMS / "torch_allocator").glob("*.py"))
    for function in re.findall(r"^def ((?:compare|check)_\w+)", program.read_text(), re.MULTILINE)
]


@pytest.fixture(scope="module", params=[VERSIONS[0], VERSIONS[-1]])
def machine(request):
    machine = TorchMachine(request.param)
    machine.build()
    return machine


# The first of a version may fetch and compile.
@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("program", "function"), FUNCTIONS)
def test_gpupool_does_what_pytorchs_own_allocator_does(machine, program, function):
    machine.run(function, f"torch_allocator/{program}.py")
