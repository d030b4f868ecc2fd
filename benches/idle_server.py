"""What a server of a model of half a billion parameters holds while nobody asks it, one JSON object a line.

    python benches/idle_server.py [REQUESTS]

Each server is a process: the parameters in half precision, and the paged cache of examples/kv_cache.py, which serves
some requests and then waits. Memory is the driver's count, less what was used before:

- floor: the cache is a tensor of PyTorch's, which ends with the requests; gpupool has no part in it.
- as needed: the cache is a memory range, whose pages are decommitted as requests end, and the pool is trimmed.
- whole: the cache is a tensor that stays, as in servers without ranges.
"""

import subprocess
import sys
from pathlib import Path

from figures import tell

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

PARAMETERS = 494_000_000
KINDS = "floor", "as needed", "whole"


def used_mib() -> int:
    """Return the MiB that are used on the first GPU, by the driver's count."""
    asked = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)


def serve(kind: str, requests: int) -> None:
    """Serve, say so, and wait for a line."""
    import gpupool
    import kv_cache
    import torch

    class TensorCache(kv_cache.WholeCache):
        """A tensor of PyTorch's as the cache."""

        def __init__(self, stream: torch.cuda.Stream) -> None:
            self.stream, self.unused = stream, list(range(kv_cache.PAGES - 1, 0, -1))
            self.bytes = torch.zeros(kv_cache.PAGES * kv_cache.PAGE_BYTES, dtype=torch.uint8, device="cuda")

    parameters = torch.ones(PARAMETERS, dtype=torch.float16, device="cuda")
    stream = torch.cuda.Stream()
    pool = gpupool.MemPool() if kind == "as needed" else None
    model = kv_cache.Model(kv_cache.RangeCache(pool, stream) if pool else TensorCache(stream), 0)
    words = torch.randn(2 * kv_cache.PROMPT, kv_cache.WIDTH, device="cuda").half()
    torch.cuda.synchronize()
    for _, prompt, answer in kv_cache.load(requests, 1000, 0):
        model.waiting.append(kv_cache.Request(words[:prompt], answer, 0.0))
    while model.waiting or any(model.requests):
        model.begin_token()
        model.foresee()
        model.end_token()
    # What the last ones left.
    model.foresee()
    torch.cuda.synchronize()
    del words
    if pool:
        pool.trim()
    elif kind == "floor":
        model.cache = model.memory.bytes = None
    torch.cuda.empty_cache()
    print("idle", flush=True)
    sys.stdin.readline()
    assert parameters[-1] == 1


def main() -> None:
    """Start a server of each kind, one after the other."""
    if len(sys.argv) == 3:
        serve(sys.argv[1], int(sys.argv[2]))
        return
    requests = sys.argv[1] if sys.argv[1:] else "40"
    held = {}
    for kind in KINDS:
        before = used_mib()
        server = subprocess.Popen(
            [sys.executable, __file__, kind, requests], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with server:
            if server.stdout.readline() != "idle\n":
                sys.exit(f"the server of {kind} ended")
            held[kind] = used_mib() - before
            server.communicate("\n")
        tell(work="idle server", kind=kind, mib=held[kind], of_floor=round(held[kind] / held["floor"], 3))


if __name__ == "__main__":
    main()
