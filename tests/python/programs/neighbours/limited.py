"""A process on the double of a driver, where NVML may tell of a limit: prints what it is told of that."""

import ctypes
import json

import gpupool
from double import calls

if __name__ == "__main__":
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert calls("nvmlInit_v2", nvml) == 0, "NVML is used by an import"
    gpupool.set_neighbour("limited")
    is_loaded_by_joining = calls("nvmlInit_v2", nvml) > 0
    (own,) = gpupool.neighbours(0)
    told = {"limit": own.system_limit, "available": gpupool.available_memory(0)}
    print(json.dumps({**told, "is_loaded_by_joining": is_loaded_by_joining}))
