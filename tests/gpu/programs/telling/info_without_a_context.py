"""`gpupool.info()` makes no context on a device: it tells of those that have one what is free there."""

import gpupool


def main():
    free = [device.free_bytes for device in gpupool.info().devices]
    assert free == [None] * gpupool.device_count(), f"before the first use the devices have {free} bytes free"
    stream = gpupool.Stream(0)
    first, *others = gpupool.info().devices
    assert 0 < first.free_bytes < first.total_bytes, f"device 0 has {first.free_bytes} of {first.total_bytes} bytes"
    free = [device.free_bytes for device in others]
    assert free == [None] * (gpupool.device_count() - 1), f"the devices not in use have {free} bytes free"
    del stream


if __name__ == "__main__":
    main()
