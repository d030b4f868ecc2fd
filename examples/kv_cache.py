"""Two models' KV caches on one GPU: each has addresses for its busiest moment, and memory for what it holds now.

Requests of two models come and go, one model's while the other's are few. Each cache is a range of pages, and a page
holds some tokens' keys and values; attention reads the cache through a captured CUDA graph, whose pointers never
change. Pages are committed as requests grow and decommitted as they end. The same program runs once with all pages
committed, and both give the same results, bit for bit.

    python examples/kv_cache.py [REQUESTS] [SEED]

It needs PyTorch and a GPU.
"""

import os
import random
import statistics
import sys
import time

import gpupool
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# So that the same program gives the same results twice.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

PAGE_BYTES = 2 << 20
LAYERS, HEADS, SIZE, SLOTS = 4, 8, 128, 16
# Bytes of one token's keys and values, in half precision.
TOKEN_BYTES = LAYERS * 2 * HEADS * SIZE * 2
TOKENS = PAGE_BYTES // TOKEN_BYTES
# Pages of one request at most.
LONGEST = 8
PAGES = 1 + SLOTS * LONGEST


class Model:
    """Attention over a paged cache, for as many requests at once as there are slots."""

    def __init__(self, pool: gpupool.MemPool, stream: torch.cuda.Stream, seed: int, commits_all: bool) -> None:
        self.pool, self.stream, self.commits_all = pool, stream, commits_all
        self.range = pool.reserve_range(PAGES * PAGE_BYTES, PAGE_BYTES)
        # Page 0 stands for pages that a request does not have.
        self.range.commit(range(PAGES) if commits_all else [0], stream, fill=0)
        self.cache = torch.from_dlpack(self.range).view(torch.float16).view(PAGES, LAYERS, 2, TOKENS, HEADS, SIZE)
        self.free = list(range(PAGES - 1, 0, -1))
        self.tables = torch.zeros(SLOTS, LONGEST, dtype=torch.long, pin_memory=True)
        self.lengths = torch.zeros(SLOTS, dtype=torch.long, pin_memory=True)
        on_gpu = {"device": "cuda"}
        self.tables_there = torch.zeros_like(self.tables, **on_gpu)
        self.lengths_there = torch.zeros_like(self.lengths, **on_gpu)
        weights = torch.Generator("cuda").manual_seed(seed)
        shape = (LAYERS, 3, HEADS * SIZE, HEADS * SIZE)
        self.weights = torch.randn(shape, generator=weights, dtype=torch.float16, **on_gpu) / (HEADS * SIZE) ** 0.5
        self.hidden = torch.zeros(SLOTS, HEADS * SIZE, dtype=torch.float16, **on_gpu)
        self.positions = torch.arange(LONGEST * TOKENS, **on_gpu)
        self.requests: list[Request | None] = [None] * SLOTS
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step()
        stream.synchronize()
        self.hidden.zero_()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self._step()

    def _step(self) -> None:
        """One token of each request, from the hidden state to the next."""
        slots = torch.arange(SLOTS, device="cuda")
        last = (self.lengths_there - 1).clamp(min=0)
        page, place = self.tables_there[slots, last // TOKENS], last % TOKENS
        is_seen = (self.positions < self.lengths_there[:, None])[:, None, None, :]
        hidden = self.hidden
        for layer in range(LAYERS):
            query, key, value = (hidden @ weight for weight in self.weights[layer])
            self.cache[page, layer, 0, place] = key.view(SLOTS, HEADS, SIZE)
            self.cache[page, layer, 1, place] = value.view(SLOTS, HEADS, SIZE)
            found = self.cache[self.tables_there, layer]
            # Slots, keys or values, tokens, heads.
            keys, values = (
                found[:, :, part].reshape(SLOTS, LONGEST * TOKENS, HEADS, SIZE).transpose(1, 2) for part in (0, 1)
            )
            query = query.view(SLOTS, HEADS, 1, SIZE)
            with sdpa_kernel(SDPBackend.MATH):
                seen = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=is_seen)
            hidden = hidden + seen.nan_to_num().reshape(SLOTS, HEADS * SIZE)
        self.hidden.copy_(torch.nn.functional.normalize(hidden.float(), dim=1) * 8)

    def step(self) -> None:
        """Compute one token of each request, committing the pages that they begin, then end those that are done."""
        new = []
        for slot, request in enumerate(self.requests):
            if request is None:
                continue
            request.length += 1
            if request.length > len(request.pages) * TOKENS:
                request.pages.append(self.free.pop())
                new.append(request.pages[-1])
                self.tables[slot, len(request.pages) - 1] = new[-1]
            self.lengths[slot] = request.length
        if new and not self.commits_all:
            # Tokens that are not there yet count nothing, but must be numbers.
            self.range.commit(new, self.stream, fill=0)
        with torch.cuda.stream(self.stream):
            self.tables_there.copy_(self.tables)
            self.lengths_there.copy_(self.lengths)
            self.graph.replay()
        # The tables are written again for the next token.
        self.stream.synchronize()
        ended = []
        for slot, request in enumerate(self.requests):
            if request is None:
                continue
            if request.first_token is None:
                request.first_token = time.perf_counter() - request.came
            if request.length == request.longest:
                with torch.cuda.stream(self.stream):
                    request.result = self.hidden[slot].clone()
                ended += request.pages
                self.tables[slot] = 0
                self.lengths[slot] = 0
                self.requests[slot] = None
        if ended and not self.commits_all:
            self.range.decommit(ended, self.stream)
        self.free += ended

    def add(self, request: "Request") -> bool:
        """Begin a request, if there is a slot."""
        if None not in self.requests:
            return False
        slot = self.requests.index(None)
        self.requests[slot] = request
        with torch.cuda.stream(self.stream):
            self.hidden[slot] = request.prompt
        return True

    def live_bytes(self) -> int:
        """Return the bytes of the pages that requests have, and of the one that stands for none."""
        return PAGE_BYTES * (1 + sum(len(request.pages) for request in self.requests if request))


class Request:
    """A request: its prompt's state, how many tokens it takes, and what came of it."""

    def __init__(self, prompt: torch.Tensor, longest: int) -> None:
        self.prompt, self.longest = prompt, longest
        self.length = 0
        self.pages: list[int] = []
        self.came = time.perf_counter()
        self.first_token: float | None = None
        self.result: torch.Tensor | None = None


def serve(requests: int, seed: int, commits_all: bool) -> dict[str, object]:
    """Serve so many requests of each of two models, whose loads rise and fall in turns."""
    pool, numbers = gpupool.MemPool(), random.Random(seed)
    models = [Model(pool, torch.cuda.Stream(), seed + place, commits_all) for place in range(2)]
    prompts = torch.Generator().manual_seed(seed)
    waiting = [
        [
            (torch.randn(HEADS * SIZE, generator=prompts).half().cuda(), numbers.randint(16, LONGEST * TOKENS))
            for _ in range(requests)
        ]
        for _ in models
    ]
    done: list[list[Request]] = [[], []]
    held, live = [], []
    begun, tokens, turn = time.perf_counter(), 0, 0
    while any(waiting) or any(request for model in models for request in model.requests):
        for place, model in enumerate(models):
            # One model's load is high for a while, and the other's low.
            is_busy = (turn // 400) % 2 == place
            limit = SLOTS if is_busy else 2
            while waiting[place] and sum(request is not None for request in model.requests) < limit:
                request = Request(*waiting[place].pop())
                model.add(request)
                done[place].append(request)
            tokens += sum(request is not None for request in model.requests)
            model.step()
        held.append(pool.stats().reserved_bytes)
        live.append(sum(model.live_bytes() for model in models))
        turn += 1
    seconds = time.perf_counter() - begun
    return {
        "results": [torch.stack([request.result for request in of_model]) for of_model in done],
        "held": max(held),
        "live": max(live),
        "mean held": statistics.mean(held),
        "tokens/s": tokens / seconds,
        "first token": statistics.median(request.first_token for of_model in done for request in of_model),
    }


def main() -> None:
    """Serve with pages as they are needed, and with all of them, and compare."""
    if gpupool.runtime() == "host" or not torch.cuda.is_available():
        print("needs PyTorch and a GPU")
        return
    requests, seed = (int(argument) for argument in (sys.argv[1:] + ["48", "1"][len(sys.argv) - 1 :])[:2])
    served = {name: serve(requests, seed, name == "all committed") for name in ("all committed", "as needed")}
    print(f"{2 * requests} requests of 2 models    held MiB  at most live    tokens/s  first token ms")
    for name, of in served.items():
        sizes = f"{of['held'] / 2**20:10.0f}  {of['live'] / 2**20:12.0f}"
        print(f"{name:25}  {sizes}  {of['tokens/s']:10.0f}  {of['first token'] * 1e3:14.2f}")
    torch.cuda.synchronize()
    pairs = zip(served["all committed"]["results"], served["as needed"]["results"], strict=True)
    same = all(map(torch.equal, *zip(*pairs, strict=True)))
    print("results          ", "the same, bit for bit" if same else "DIFFERENT")
    print(f"held over live    {served['as needed']['held'] / served['as needed']['live']:.3f}")
    assert same


if __name__ == "__main__":
    main()
