"""What a summary tells of frameworks' own memory. Stand-ins for the frameworks, over the double of the driver."""

import ctypes
import sys
import types

import gpupool


class Device:
    """cupy.cuda.Device."""

    current = 0

    def __init__(self, ordinal):
        self.ordinal = ordinal

    def __enter__(self):
        self.before, Device.current = Device.current, self.ordinal

    def __exit__(self, *_):
        Device.current = self.before


class Pool:
    """CuPy's memory pool."""

    def total_bytes(self):
        return (5 + Device.current) << 20


def torch_like(**cuda):
    """Have a torch with these functions of torch.cuda."""
    sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(**cuda))


def assert_told(expected, device=0):
    """Check what each framework is told to have, in MiB."""
    frameworks = gpupool.memory_summary(device).devices[0].frameworks
    told = {each.framework: each.reserved_bytes >> 20 for each in frameworks}
    assert told == expected, f"of device {device} is told {told}, not {expected}"


def those_that_are_imported_are_asked():
    cuda = types.SimpleNamespace(Device=Device)
    sys.modules["cupy"] = types.SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: Pool())
    torch_like(is_initialized=lambda: True, memory_reserved=lambda device: (40 + device) << 20)
    assert_told({"torch": 40, "cupy": 5})
    assert_told({"torch": 41, "cupy": 6}, device=1)
    assert Device.current == 0, f"CuPy's device {Device.current} stayed current"
    lines = [line for line in str(gpupool.memory_summary(0)).splitlines() if line.startswith("other")]
    expected = ["other                 0 B        of that torch 40.0 MiB, cupy 5.00 MiB"]
    assert lines == expected, f"the table has {lines}"
    torch_like(is_initialized=lambda: False)
    assert_told({"cupy": 5})


def one_that_cannot_answer_keeps_nobody_else_from_it():
    def refuse(device):
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    torch_like(is_initialized=lambda: True, memory_reserved=refuse)
    # Half imported by another thread.
    sys.modules["cupy"] = types.ModuleType("cupy")
    assert_told({})


def what_gpupool_feeds_pytorch_is_counted_once():
    pool = gpupool.MemPool()
    address, _ = gpupool.c_api.feed(pool)
    malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(address)
    assert malloc(30 << 20, 0, None), "PyTorch gets no memory"
    sys.modules["gpupool.torch"] = types.ModuleType("gpupool.torch")
    torch_like(is_initialized=lambda: True, memory_reserved=lambda device: 42 << 20)
    assert_told({"torch": 12})
    text = str(gpupool.memory_summary(0))
    assert "feeds other allocators" in text, f"the table does not say what the pool is for: {text}"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
