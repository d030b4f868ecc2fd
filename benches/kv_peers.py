"""The paged caches of examples/kv_cache.py with gpupool's ranges and with kvcached, one JSON object a line.

    python benches/kv_peers.py [TURNS] [RATE...]

Kinds take turns, each in a process of its own, which serves the same requests at each rate (requests a second of the
busy model) after some for warming up:

- all committed: a range whose pages all have memory from the beginning.
- as needed: a range whose pages come and go.
- kvcached: its own operations that map pages and unmap them, called where ranges are committed and decommitted.
- kvcached manager: its KVCacheManager with its defaults, which maps pages ahead on a thread, and keeps 5 to 10.

A line has the tokens a second, the milliseconds to the first token (median and 95 %), the most memory held over the
most that was live, and whether the results are those of all committed. kvcached (https://github.com/ovg-project/kvcached)
is left out where it cannot be imported.
"""

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from figures import tell

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

KINDS = "all committed", "as needed", "kvcached", "kvcached manager"
RATES = "20", "60", "1000"
REQUESTS = 90


def kvcached_caches(is_managed: bool) -> tuple[list[Any], Any]:
    """Return a cache for each of two models in kvcached's memory, and what tells the bytes that they hold."""
    import kv_cache
    import torch
    from kvcached import vmm_ops
    from kvcached.kv_cache_manager import KVCacheManager

    vmm_ops.init_kvcached("cuda:0", kv_cache.PAGE_BYTES, True)

    class Cache:
        """Pages of a region, all of which have addresses."""

        def __init__(self, group: int) -> None:
            self.group, self.stream = group, torch.cuda.Stream()
            self.mapped: set[int] = set()
            nbytes = kv_cache.PAGES * kv_cache.PAGE_BYTES
            (made,) = vmm_ops.create_kv_tensors(nbytes, 1, "cuda:0", 1, 1, group)
            self.bytes = made.view(torch.uint8)
            self.unused: Any = list(range(kv_cache.PAGES - 1, 0, -1))

        def commit(self, pages: list[int]) -> None:
            """Map pages, whose content is zeroed as that of ranges is."""
            if new := [page for page in pages if page not in self.mapped]:
                assert vmm_ops.map_to_kv_tensors([page * kv_cache.PAGE_BYTES for page in new], self.group)
                self.mapped.update(new)
                self.zero(new)

        def zero(self, pages: list[int]) -> None:
            """Zero pages, in the order of the stream."""
            with torch.cuda.stream(self.stream):
                for page in pages:
                    self.bytes[page * kv_cache.PAGE_BYTES :][: kv_cache.PAGE_BYTES].zero_()

        def decommit(self, pages: list[int]) -> None:
            """Unmap pages: no work that was begun uses them."""
            assert vmm_ops.unmap_from_kv_tensors([page * kv_cache.PAGE_BYTES for page in pages], self.group)
            self.mapped.difference_update(pages)

        def finish(self) -> None:
            """Do nothing: the loop itself has called kvcached."""

        def held_bytes(self) -> int:
            """Return the bytes of pages that are mapped."""
            return len(self.mapped) * kv_cache.PAGE_BYTES

    class ManagedCache(Cache):
        """The same by kvcached's manager, which chooses the pages: each is a block."""

        def __init__(self, group: int) -> None:
            super().__init__(group)
            self.manager = KVCacheManager(
                num_blocks=kv_cache.PAGES,
                block_size=1,
                cell_size=kv_cache.PAGE_BYTES,
                num_layers=1,
                world_size=1,
                reserve_null_block=True,
                num_kv_buffers=1,
                group_id=group,
                own_segment=True,
            )
            self.manager._wait_post_init()
            assert self.manager.null_block == [0]
            self.unused = self

        def pop(self) -> int:
            """Allocate a page."""
            return self.manager.alloc(1)[0]

        def __iadd__(self, pages: list[int]) -> "ManagedCache":
            self.manager.free(list(pages))
            return self

        def commit(self, pages: list[int]) -> None:
            """Zero pages, which have memory since they were allocated."""
            self.zero(pages)

        def decommit(self, pages: list[int]) -> None:
            """Do nothing: they go as they are freed."""

        def held_bytes(self) -> int:
            """Return the bytes of pages that are in use or kept."""
            state = self.manager.page_allocator.get_page_state()
            return (state["inuse_pages"] + state["reserved_pages"]) * kv_cache.PAGE_BYTES

    caches = [(ManagedCache if is_managed else Cache)(group) for group in range(2)]
    return caches, lambda: sum(cache.held_bytes() for cache in caches)


def serve(kind: str, rates: list[str]) -> None:
    """Serve at each rate, in this process."""
    import kv_cache

    if kind.startswith("kvcached"):
        caches, held = kvcached_caches(kind.endswith("manager"))
    else:
        pool = kv_cache.gpupool.MemPool()
        of_range = kv_cache.WholeCache if kind == "all committed" else kv_cache.RangeCache
        caches = [of_range(pool, kv_cache.torch.cuda.Stream()) for _ in range(2)]

        def held() -> int:
            return pool.stats().reserved_bytes

    kv_cache.serve(12, 1000, caches, held)
    for rate in rates:
        served = kv_cache.serve(REQUESTS, float(rate), caches, held)
        tell(
            rate=float(rate),
            kind=kind,
            tokens_per_s=round(served["tokens/s"]),
            first_token_ms=round(served["first token"] * 1e3, 2),
            first_token_95_ms=round(served["first token, 95 %"] * 1e3, 2),
            held_mib=served["held"] >> 20,
            held_over_live=round(served["held"] / served["live"], 4),
            results=hashlib.sha256(served["results"].cpu().numpy().tobytes()).hexdigest()[:16],
        )


def main() -> None:
    """Have each kind serve in turn, and compare the results."""
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], sys.argv[3:])
        return
    turns, rates = int(sys.argv[1]) if sys.argv[1:] else 3, sys.argv[2:] or list(RATES)
    has_kvcached = importlib.util.find_spec("kvcached") is not None
    results: dict[float, str] = {}
    for turn in range(turns):
        for kind in KINDS if has_kvcached else KINDS[:2]:
            told = subprocess.run([sys.executable, __file__, "serve", kind, *rates], stdout=subprocess.PIPE, text=True)
            for line in told.stdout.splitlines():
                if line.startswith("{"):
                    found = json.loads(line)
                    result = found.pop("results")
                    tell(turn=turn, **found, is_same=results.setdefault(found["rate"], result) == result)
            if told.returncode:
                tell(turn=turn, kind=kind, error=told.returncode)


if __name__ == "__main__":
    main()
