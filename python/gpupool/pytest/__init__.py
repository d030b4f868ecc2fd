"""A pytest plugin for the device memory of tests.

``pytest -p gpupool.pytest`` loads it, or in ``conftest.py``:

>>> pytest_plugins = ["gpupool.pytest"]

The fixture ``gpu_memory`` has a test's ``peak``, ``live`` and ``leaked`` bytes, and a marker sets limits:

>>> @pytest.mark.gpu_memory(peak="2GiB", leaks=False)
... def test_step():
...     step()

The test fails if it has more memory live at once, or leaves blocks behind. With ``--gpu-memory-history`` the message
names the lines that allocated them. Tests without the fixture and the marker run as usual, and pytest does not load
this module by itself. On the simulated device (``GPUPOOL_RUNTIME=host``) no GPU is needed.

PYTEST_DONT_REWRITE: there is no assertion in it.

https://docs.pytest.org/en/stable/how-to/plugins.html
"""

from gpupool.pytest._hooks import (
    gpu_memory,
    pytest_addoption,
    pytest_configure,
    pytest_fixture_setup,
    pytest_report_teststatus,
    pytest_runtest_call,
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_runtest_teardown,
)
from gpupool.pytest._measurement import GpuMemory

# What pytest looks for by its name is here, too.
__all__ = ["GpuMemory", "gpu_memory"]
_HOOKS = (
    *(pytest_addoption, pytest_configure, pytest_fixture_setup, pytest_report_teststatus, pytest_runtest_call),
    *(pytest_runtest_makereport, pytest_runtest_setup, pytest_runtest_teardown),
)
