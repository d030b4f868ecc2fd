"""`gpupool top` makes no context on a device, and nevertheless tells what is used and free there."""

import contextlib
import io
import json

import gpupool
from gpupool.__main__ import main

if __name__ == "__main__":
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["top", "--once", "--json"]) == 0, "the devices were not told of"
    for device in json.loads(printed.getvalue())["devices"]:
        assert device["error"] is None, f"a device fails: {device}"
        assert device["used_bytes"] + device["free_bytes"] == device["total_bytes"], f"a sum is wrong: {device}"
    free = [device.free_bytes for device in gpupool.info().devices]
    assert free == [None] * gpupool.device_count(), f"with a context devices tell their free bytes: {free}"
