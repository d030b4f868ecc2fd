"""Where nothing uses the GPU before a fork, both sides may after it."""

import os

import gpupool
from forking import exit_code_of


def main():
    child = os.fork()
    who = "parent" if child else "child"
    assert gpupool.cublas.handle() != 0, f"the {who} has no handle"
    if child == 0:
        os._exit(0)
    assert exit_code_of(child) == 0, "the child failed"


if __name__ == "__main__":
    main()
