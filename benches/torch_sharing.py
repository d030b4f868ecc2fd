"""A CUDA tensor through a queue of torch.multiprocessing and back, with gpupool and with PyTorch's own allocator.

    python benches/torch_sharing.py [ROUNDS]

Each way has two processes of its own; the ways take turns. A round puts a tensor on a queue, the other process takes
it up, makes one of its own from it and puts that on a second queue, and the round ends when the content of that one is
there. The first round is told apart. One JSON object a line, times in milliseconds; the last lines are gpupool's
medians over PyTorch's own, of which no more than 1 is wanted.
"""

import json
import statistics
import sys
import time
from typing import Any

MIB = 1 << 20
WAYS = "gpupool", "PyTorch"
SIZES = 4096, 16 * MIB, 256 * MIB
ROUNDS = 200


def begin(way: str) -> Any:
    """Make the way PyTorch's allocator, and return PyTorch."""
    import gpupool.torch
    import torch

    if way == "gpupool":
        gpupool.torch.enable()
    torch.empty(1, device="cuda")
    return torch


def echo(way: str, asked: Any, answers: Any) -> None:
    """Send back one more than what comes, until nothing comes."""
    torch = begin(way)
    answers.put("ready")
    while (tensor := asked.get()) is not None:
        answer = tensor + 1
        del tensor
        answers.put(answer)
        # PyTorch keeps its memory until it was received and dropped.
        del answer
    torch.cuda.synchronize()


class Pair:
    """This process, and another that it sends tensors to."""

    def __init__(self, way: str) -> None:
        self._torch = begin(way)
        context = self._torch.multiprocessing.get_context("spawn")
        self._asked, self._answers = context.Queue(), context.Queue()
        self._other = context.Process(target=echo, args=(way, self._asked, self._answers))
        self._other.start()
        assert self._answers.get() == "ready"

    def round(self, nbytes: int) -> float:
        """Return the milliseconds of one round."""
        tensor = self._torch.zeros(nbytes, dtype=self._torch.uint8, device="cuda")
        self._torch.cuda.synchronize()
        began = time.perf_counter()
        self._asked.put(tensor)
        answer = self._answers.get()
        total = int(answer[0]) + int(answer[-1])
        took = (time.perf_counter() - began) * 1e3
        assert total == 2, "the tensor came back with other content"
        return took

    def end(self) -> None:
        """End the other process."""
        self._asked.put(None)
        self._other.join()


def serve(way: str, pipe: Any) -> None:
    """Do rounds as asked, in a process for the way."""
    pair = Pair(way)
    while (nbytes := pipe.recv()) is not None:
        pipe.send(pair.round(nbytes))
    pair.end()


def main() -> None:
    """Measure both ways, and tell the ratios."""
    import multiprocessing

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    context = multiprocessing.get_context("spawn")
    pipes = {}
    for way in WAYS:
        pipes[way], other = context.Pipe()
        context.Process(target=serve, args=(way, other)).start()
        other.close()

    def measure(way: str, nbytes: int) -> float:
        pipes[way].send(nbytes)
        return float(pipes[way].recv())

    ratios = {}
    for nbytes in SIZES:
        first = {way: measure(way, nbytes) for way in WAYS}
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                times[way].append(measure(way, nbytes))
        medians = {way: statistics.median(values) for way, values in times.items()}
        for way in WAYS:
            told = {"way": way, "bytes": nbytes, "first_ms": round(first[way], 3), "ms": round(medians[way], 4)}
            print(json.dumps(told), flush=True)
        ratios[nbytes] = medians["gpupool"] / medians["PyTorch"]
    for pipe in pipes.values():
        pipe.send(None)
    for nbytes, ratio in ratios.items():
        print(json.dumps({"bytes": nbytes, "gpupool over PyTorch": round(ratio, 3)}), flush=True)


if __name__ == "__main__":
    main()
