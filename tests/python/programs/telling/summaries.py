"""What `gpupool.memory_summary()` tells of the devices in use, and that it imports and starts nothing for it."""

import sys

import gpupool
from gpupool._report import summary


def is_of_every_device_in_use():
    """Ask without a device; where none is in use it is of the current one."""

    def assert_devices(*expected):
        found = tuple(device.device for device in gpupool.memory_summary().devices)
        assert found == expected, f"the summary is of the devices {found}, not {expected}"

    assert_devices(0)
    in_use = gpupool._native.devices_in_use()
    assert in_use == [], f"the summary put devices to use: {in_use}"
    lease = gpupool.simulated.lease(gpupool.Stream(1))
    lease.__enter__()
    assert_devices(1)
    gpupool.empty(1, gpupool.Stream(0)).free()
    assert_devices(0, 1)
    (device,) = gpupool.memory_summary(1).devices
    assert device.reserved_bytes == 0, f"device 1 has {device.reserved_bytes} bytes"


def of_nothing_imports_and_starts_nothing():
    in_use = gpupool._native.devices_in_use()
    assert in_use == [], f"devices are in use: {in_use}"
    # The second time too.
    for _ in range(2):
        text = str(summary.gather([]))
        assert text.endswith("has used no device through gpupool"), f"the summary of nothing is: {text}"
    imported = {"torch", "cupy", "prometheus_client"} & sys.modules.keys()
    assert not imported, f"the summary imports {imported}"


def is_tables_for_people():
    """Print it, of two pools and eleven streams."""
    streams = [gpupool.Stream() for _ in range(11)]
    pool = gpupool.MemPool(limit=1 << 30)
    kept = gpupool.empty(1536 << 10)
    with gpupool.use_mem_pool(pool):
        buffers = [gpupool.empty(2 << 20, stream) for stream in streams]
    gpupool.simulated.handle()
    print(gpupool.memory_summary(0))
    del kept, buffers


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
