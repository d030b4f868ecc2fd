"""The memory of arrays that Warp allocates while it captures a graph, which replays use at the same addresses.

Warp's own allocator makes such memory a part of the graph. Here it comes from a pool of the graph's, and stays out of
use by others until both the array and the graph are gone: within the graph it is not used again, for other streams of
the capture may use it, which Warp does not tell.
"""

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from gpupool._native import (
    DeviceBuffer,
    Forked,
    InvalidValue,
    begin_allocate_to_pool,
    empty,
    end_allocate_to_pool,
    graph_pool_handle,
    pool_use_count,
    release_pool,
)

# A buffer, and Warp's stream that it is freed in the order of, which it keeps alive.
Memory: TypeAlias = tuple[DeviceBuffer, Any]


class GraphMemory:
    """Memory that an array and graphs have; it is freed by the last of them."""

    __slots__ = ("_release", "memory")

    def __init__(self, memory: Memory, release: Callable[[Memory], None]) -> None:
        self.memory = memory
        self._release = release

    def __del__(self) -> None:
        self._release(self.memory)


class _Graph:
    """What a graph has: the pool of its memory, and what came from there."""

    def __init__(self) -> None:
        self.pool_id = graph_pool_handle(is_user_created=False)
        self.memory: list[GraphMemory] = []


class Graphs:
    """The graphs of one device that have memory."""

    def __init__(self, device: Any, release: Callable[[Memory], None]) -> None:
        self._device = device
        self._release = release
        self._graphs: dict[int, _Graph] = {}

    def allocate(self, nbytes: int, stream: Any) -> GraphMemory:
        """Allocate on a stream that is captured, from a pool in whose scope the thread is, or else from the graph's.

        Raises:
            gpupool.InvalidValue: Warp knows of no graph that is captured, and the thread is in no scope.
        """
        captures = dict(self._device.captures)
        # A stream that joined a capture is in one of those that are under way.
        captured = [captures[stream]] if stream in captures else list(captures.values())
        graphs = [self._graph_of(graph) for graph in captured]
        if any(empty(1, stream.cuda_stream).pool_id):
            buffer = empty(nbytes, stream.cuda_stream)
        elif graphs:
            buffer = self._allocate_of(graphs[0], nbytes, stream)
        else:
            raise InvalidValue(
                f"{stream} is captured by no wp.capture_begin that is under way, so that nobody knows which graph the "
                "memory is for: allocate the array before, or put `with pool.capture(stream):` around the capture"
            )
        memory = GraphMemory((buffer, stream), self._release)
        for graph in graphs:
            graph.memory.append(memory)
        return memory

    def _graph_of(self, graph: Any) -> _Graph:
        key = id(graph)
        known = self._graphs.get(key)
        if known is None:
            new = _Graph()
            # Another thread of the same capture may be as far.
            known = self._graphs.setdefault(key, new)
            if known is new:
                weakref.finalize(graph, self._end, key).atexit = False
        return known

    def _allocate_of(self, graph: _Graph, nbytes: int, stream: Any) -> DeviceBuffer:
        ordinal = self._device.ordinal
        begin_allocate_to_pool(ordinal, graph.pool_id)
        try:
            return empty(nbytes, stream.cuda_stream)
        finally:
            end_allocate_to_pool(ordinal, graph.pool_id)

    def _end(self, key: int) -> None:
        """Let others have the memory of a graph that is gone, but for that of arrays which live."""
        graph, ordinal = self._graphs.pop(key), self._device.ordinal
        with suppress(Forked):
            # Each allocation has begun a use.
            for _ in range(pool_use_count(ordinal, graph.pool_id) or 0):
                release_pool(ordinal, graph.pool_id)
