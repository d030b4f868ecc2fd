"""Every sample of the guide and the README runs on a GPU, those too that need none."""

import guide
import pytest


@pytest.mark.parametrize("name", guide.programs(on_gpu=True))
def test_samples_run(name, tmp_path):
    # JAX leaves the GPU's memory to others as well.
    done = guide.run_apart(name, True, tmp_path, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    if "requires cuDSS version" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
