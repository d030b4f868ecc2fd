"""A program takes a snapshot of its memory and has the command line draw it."""

import pickle
import sys
from pathlib import Path

import gpupool
from gpupool.__main__ import main

if __name__ == "__main__":
    snapshot, picture = map(Path, sys.argv[1:])
    kept = [gpupool.empty(1 << 20) for _ in range(3)]
    pool = gpupool.MemPool()
    with gpupool.use_mem_pool(pool):
        private = gpupool.empty(5 << 20)
    snapshot.write_bytes(pickle.dumps(gpupool.memory_snapshot()))
    sys.exit(main(["plot", str(snapshot), "-o", str(picture)]))
