"""A program that tells what Python has told it."""

import json
import multiprocessing
import os
import sys

main = sys.modules["__main__"]


def name_in_child(_):
    """Return what the module of this function is called in a process that spawned."""
    return __name__, sys.modules["__main__"].__name__


if __name__ == "__main__":
    assert main.__dict__ is globals()
    told = {name: str(value) for name, value in sorted(globals().items()) if name in ("__file__", "__package__")}
    told["names"] = sorted(name for name in globals() if name.startswith("__"))
    told["spec"] = __spec__ and __spec__.name
    told["loader"] = type(__loader__).__name__
    told["argv"], told["path"] = sys.argv, sys.path[0]
    told["folder"] = os.getcwd()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        told["child"] = pool.map(name_in_child, [0])
    print(json.dumps(told, indent=1))
