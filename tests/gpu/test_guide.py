"""Every sample of the guide and the README runs on a GPU, those too that need none."""

import guide
import pytest

pytestmark = pytest.mark.device_memory(gib=4)


def programs():
    """Return the names of all programs, marked if no other test may need the GPU's memory meanwhile."""
    for name, program in guide.programs(on_gpu=True).items():
        is_alone = any("alone" in sample.told for sample in program)
        yield pytest.param(name, marks=[pytest.mark.alone] if is_alone else [])


@pytest.mark.parametrize("name", list(programs()))
def test_samples_run(name, tmp_path):
    # JAX leaves the GPU's memory to others as well.
    done = guide.run_apart(name, True, tmp_path, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    if "requires cuDSS version" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
