"""Two models' KV caches on one GPU: each has addresses for its busiest moment, and memory for what it holds now.

Requests of two models come and go, many of one while few of the other. Each cache is a range of pages, and a page holds
some tokens' keys and values. Prompts are computed as they come, further tokens by a captured CUDA graph, whose pointers
never change. Pages are committed by a thread of its own, while this one launches the prompts' kernels and the GPU
computes, and those of requests that ended are decommitted. The same requests are served with all pages committed, and
both give the same results, bit for bit.

    python examples/kv_cache.py [REQUESTS] [RATE...]

REQUESTS is how many each model gets, and a RATE how many a second come while it is busy: there is a row for each RATE.
It needs PyTorch and a GPU.
"""

import itertools
import os
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import gpupool
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# So that the same program gives the same results twice.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

PAGE_BYTES = 2 << 20
LAYERS, HEADS, SIZE, SLOTS = 4, 8, 128, 16
WIDTH = HEADS * SIZE
# Bytes of one token's keys and values, in half precision.
TOKEN_BYTES = LAYERS * 2 * WIDTH * 2
TOKENS = PAGE_BYTES // TOKEN_BYTES
# Tokens of a prompt and of its answer, at most.
PROMPT, ANSWER = 3000, 60
LONGEST = -(-(PROMPT + ANSWER) // TOKENS)
PAGES = 1 + SLOTS * LONGEST
# How often busy and quiet turns come: in as many parts the requests of both models are cut.
TURNS = 4
# One page in so many stays committed when requests end, for the next ones: they differ in length, and beside the GPU's
# work the driver's calls are slow.
SPARE_PARTS = 32
# What commits and decommits pages: gpupool does not hold the GIL meanwhile.
COMMITTING = ThreadPoolExecutor(1, "commit")


class RangeCache:
    """The memory of a paged cache: a range of a pool, of which pages are committed as they are needed."""

    def __init__(self, pool: gpupool.MemPool, stream: torch.cuda.Stream) -> None:
        self.range, self.stream = pool.reserve_range(PAGES * PAGE_BYTES, PAGE_BYTES), stream
        self.bytes = torch.from_dlpack(self.range)
        # Page 0 stands for pages that a request does not have. Of the others those come first that were left last.
        self.unused = list(range(PAGES - 1, 0, -1))
        self.under_way: list[Future[None]] = []

    def commit(self, pages: list[int]) -> None:
        """Begin to give memory to pages."""
        # Tokens that are not there yet count nothing, but must be numbers.
        self.under_way.append(COMMITTING.submit(self.range.commit, pages, self.stream, fill=0))

    def decommit(self, pages: list[int]) -> None:
        """Begin to take the memory away, before anything that is begun later."""
        self.under_way.append(COMMITTING.submit(self.range.decommit, pages, self.stream))

    def finish(self) -> None:
        """Wait until all of that is done."""
        for begun in self.under_way:
            begun.result()
        self.under_way.clear()


class WholeCache(RangeCache):
    """The same with all pages committed, from the beginning to the end."""

    def __init__(self, pool: gpupool.MemPool, stream: torch.cuda.Stream) -> None:
        super().__init__(pool, stream)
        super().commit(list(range(PAGES)))
        self.finish()

    def commit(self, pages: list[int]) -> None:
        """Do nothing: the pages have memory."""

    def decommit(self, pages: list[int]) -> None:
        """Do nothing: the pages keep it."""


class Request:
    """A request: its prompt, how many tokens it takes, and what came of it."""

    def __init__(self, prompt: torch.Tensor, answer: int, comes: float) -> None:
        self.prompt, self.answer, self.comes = prompt, answer, comes
        self.length = prompt.shape[0]
        self.left = answer
        self.pages: list[int] = []
        self.first_token: float | None = None
        self.result: torch.Tensor | None = None

    def pages_for(self, tokens: int) -> int:
        """Return how many pages it lacks to hold so many tokens more."""
        return -(-(self.length + tokens) // TOKENS) - len(self.pages)


class Model:
    """Attention over a paged cache, for as many requests at once as there are slots."""

    def __init__(self, cache: RangeCache, seed: int) -> None:
        self.memory, self.stream = cache, cache.stream
        self.memory.commit([0])
        self.memory.finish()
        # Committed, but no request's: of requests that ended just now, or for the next ones.
        self.spare: list[int] = []
        self.cache = cache.bytes.view(torch.float16).view(PAGES, LAYERS, 2, TOKENS, HEADS, SIZE)
        self.tables = torch.zeros(SLOTS, LONGEST, dtype=torch.long, pin_memory=True)
        self.lengths = torch.zeros(SLOTS, dtype=torch.long, pin_memory=True)
        self.tables_there = torch.zeros_like(self.tables, device="cuda")
        self.lengths_there = torch.zeros_like(self.lengths, device="cuda")
        weights = torch.Generator("cuda").manual_seed(seed)
        shape = (LAYERS, 3, WIDTH, WIDTH)
        self.weights = torch.randn(shape, generator=weights, dtype=torch.float16, device="cuda") / WIDTH**0.5
        self.hidden = torch.zeros(SLOTS, WIDTH, dtype=torch.float16, device="cuda")
        self.positions = torch.arange(LONGEST * TOKENS, device="cuda")
        self.requests: list[Request | None] = [None] * SLOTS
        self.waiting: deque[Request] = deque()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._compute_token()
        self.stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self._compute_token()

    def _compute_token(self) -> None:
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
            hidden = hidden + seen.nan_to_num().reshape(SLOTS, WIDTH)
        self.hidden.copy_(torch.nn.functional.normalize(hidden.float(), dim=1) * 8)

    def _compute_prompt(self, slot: int, prompt: torch.Tensor) -> list[list[torch.Tensor]]:
        """All tokens of a prompt at once, without the cache; return each layer's keys and values."""
        hidden, found = prompt, []
        for layer in range(LAYERS):
            query, key, value = ((hidden @ weight).view(-1, HEADS, SIZE) for weight in self.weights[layer])
            found.append([key, value])
            heads = (part.transpose(0, 1)[None] for part in (query, key, value))
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
                seen = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
            hidden = hidden + seen[0].transpose(0, 1).reshape(-1, WIDTH)
        self.hidden[slot] = torch.nn.functional.normalize(hidden[-1].float(), dim=0) * 8
        return found

    def _keep_prompt(self, slot: int, found: list[list[torch.Tensor]]) -> None:
        """Write a prompt's keys and values to the pages of its request."""
        tokens = self.positions[: found[0][0].shape[0]]
        page = self.tables_there[slot, tokens // TOKENS]
        for layer, parts in enumerate(found):
            for part, values in enumerate(parts):
                self.cache[page, layer, part, tokens % TOKENS] = values

    def _keep_spare(self, count: int) -> None:
        """Have pages committed until so many are spare, or those beyond decommitted."""
        if (more := count - len(self.spare)) > 0:
            pages = [self.memory.unused.pop() for _ in range(more)]
            self.memory.commit(pages)
            self.spare += pages
        elif more < 0:
            pages = self.spare[count:]
            del self.spare[count:]
            self.memory.decommit(pages)
            self.memory.unused += pages

    def _give_pages(self) -> None:
        """Give each request the pages of its next token, of those that are spare."""
        for slot, request in enumerate(self.requests):
            if request is None:
                continue
            for page in [self.spare.pop() for _ in range(request.pages_for(1))]:
                self.tables[slot, len(request.pages)] = page
                request.pages.append(page)
            self.lengths[slot] = request.length + 1

    def begin_token(self) -> None:
        """Begin to compute one token of each request, and the prompts of those that are new."""
        new = []
        for slot, request in enumerate(self.requests):
            if request is None and self.waiting:
                self.requests[slot] = self.waiting.popleft()
                new.append(slot)
        if not any(self.requests):
            return
        lacking = sum(request.pages_for(1) for request in self.requests if request)
        self._keep_spare(max(lacking, len(self.spare)))
        with torch.cuda.stream(self.stream):
            prompts = [(slot, self._compute_prompt(slot, self.requests[slot].prompt)) for slot in new]
        self.memory.finish()
        self._give_pages()
        with torch.cuda.stream(self.stream):
            self.tables_there.copy_(self.tables, non_blocking=True)
            self.lengths_there.copy_(self.lengths, non_blocking=True)
            for prompt in prompts:
                self._keep_prompt(*prompt)
            self.graph.replay()

    def foresee(self) -> None:
        """While the GPU computes, commit the pages of the next token."""
        lacking = sum(request.pages_for(2) for request in self.requests if request and request.left > 1)
        self._keep_spare(max(lacking, len(self.spare)))

    def decommit_spare(self) -> None:
        """Decommit what no request has, but for a few pages and those of requests that begin next."""
        used = sum(len(request.pages) for request in self.requests if request)
        next_ones = itertools.islice(self.waiting, self.requests.count(None))
        kept = max(sum(request.pages_for(1) for request in next_ones), used // SPARE_PARTS)
        self._keep_spare(min(kept, len(self.spare)))

    def end_token(self) -> int:
        """Wait for the tokens, and end the requests that are done; return how many tokens there were."""
        if not any(self.requests):
            return 0
        # The tables are written again for the next token.
        self.stream.synchronize()
        now, tokens = time.perf_counter(), 0
        for slot, request in enumerate(self.requests):
            if request is None:
                continue
            tokens += 1
            request.length += 1
            request.left -= 1
            if request.first_token is None:
                request.first_token = now - request.comes
            if request.left == 0:
                with torch.cuda.stream(self.stream):
                    request.result = self.hidden[slot].clone()
                self.spare += request.pages
                self.tables[slot] = 0
                self.lengths[slot] = 0
                self.requests[slot] = None
        return tokens

    def live_bytes(self) -> int:
        """Return the bytes of the pages that requests have, and of the one that stands for none."""
        return PAGE_BYTES * (1 + sum(len(request.pages) for request in self.requests if request))


def load(requests: int, rate: float, place: int) -> list[tuple[float, int, int]]:
    """Return when each request of a model comes, in seconds, and its prompt's and answer's tokens.

    Lengths are those of the log llm_serve-7. In every other turn the model is busy, and else an eighth as many come.
    """
    lengths, moments = random.Random(7), random.Random(place)
    now, found = 0.0, []
    for turn in range(TURNS):
        is_busy = turn % 2 == place
        share = (8 if is_busy else 1) / (9 * TURNS / 2)
        for _ in range(max(round(requests * share), 1)):
            answer, prompt = lengths.randint(5, ANSWER), lengths.randint(32, PROMPT)
            found.append((now, prompt, answer))
            now += moments.expovariate(rate if is_busy else rate / 8)
    return found


def serve(requests: int, rate: float, caches: list[RangeCache], held_bytes: Callable[[], int]) -> dict[str, object]:
    """Serve so many requests of each of two models, whose loads rise and fall in turns."""
    models = [Model(cache, seed) for seed, cache in enumerate(caches)]
    words = torch.randn(2 * PROMPT, WIDTH, generator=torch.Generator("cuda").manual_seed(1), device="cuda").half()
    plans = [load(requests, rate, place) for place in range(2)]
    torch.cuda.synchronize()
    begun, tokens = time.perf_counter(), 0
    coming = [
        deque(
            Request(words[number % PROMPT :][:prompt], answer, begun + moment)
            for number, (moment, prompt, answer) in enumerate(plan)
        )
        for plan in plans
    ]
    requests_of = [list(of_model) for of_model in coming]
    held = live = 0
    while any(coming) or any(model.waiting or any(model.requests) for model in models):
        for model, to_come in zip(models, coming, strict=True):
            while to_come and to_come[0].comes <= time.perf_counter():
                model.waiting.append(to_come.popleft())
            # Before the other model needs pages.
            model.decommit_spare()
        for model in models:
            model.begin_token()
        for model in models:
            model.foresee()
        held = max(held, held_bytes())
        live = max(live, sum(model.live_bytes() for model in models))
        tokens += sum(model.end_token() for model in models)
    seconds = time.perf_counter() - begun
    for model in models:
        model.decommit_spare()
        model.memory.finish()
        # The last results may still be under way there.
        torch.cuda.current_stream().wait_stream(model.stream)
    served = [request for of_model in requests_of for request in of_model]
    first = sorted(request.first_token for request in served)
    return {
        "results": torch.stack([request.result for request in served]),
        "held": held,
        "live": live,
        "tokens/s": tokens / seconds,
        "first token": statistics.median(first),
        "first token, 95 %": first[len(first) * 95 // 100],
    }


def serve_from(kind: type[RangeCache], requests: int, rate: float) -> dict[str, object]:
    """Serve from caches of a kind, in a pool of their own."""
    pool = gpupool.MemPool()
    caches = [kind(pool, torch.cuda.Stream()) for _ in range(2)]
    return serve(requests, rate, caches, lambda: pool.stats().reserved_bytes)


def main() -> None:
    """Serve with pages as they are needed, and with all of them, and compare."""
    if gpupool.runtime() == "host" or not torch.cuda.is_available():
        print("needs PyTorch and a GPU")
        return
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 90
    rates = [float(rate) for rate in sys.argv[2:]] or [10, 40, 1000]
    kinds = {"all committed": WholeCache, "as needed": RangeCache}
    for kind in kinds.values():
        # What PyTorch and its libraries load for each shape.
        serve_from(kind, 12, 1000)
    print(f"{2 * requests} requests of 2 models       held    live             first token, ms")
    print("busy rate, pages            MiB     MiB  tokens/s  median   95 %")
    for rate in rates:
        served = {}
        for name, kind in kinds.items():
            served[name] = of = serve_from(kind, requests, rate)
            sizes = f"{of['held'] / 2**20:7.0f} {of['live'] / 2**20:7.0f}"
            first = f"{of['first token'] * 1e3:7.2f} {of['first token, 95 %'] * 1e3:6.2f}"
            print(f"{rate:5.0f}/s  {name:15} {sizes}  {of['tokens/s']:8.0f} {first}")
        whole, needed = served.values()
        is_same = torch.equal(whole["results"], needed["results"])
        print(
            f"         held over live {needed['held'] / needed['live']:.3f}, "
            f"tokens/s {needed['tokens/s'] / whole['tokens/s']:.3f} of all committed, "
            f"results {'the same, bit for bit' if is_same else 'DIFFERENT'}"
        )
        assert is_same


if __name__ == "__main__":
    main()
