"""PyTorch's tensors on their way to another process.

PyTorch sends a handle that its allocator makes, and the receiver's allocator opens it. PyTorch's own calls one of
gpupool's "from a future version of torch". So such a tensor is sent with a function of gpupool's around PyTorch's,
which finds gpupool in the receiver, and needs nothing else there.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from gpupool._torch import place, received_tensors

# What the handle of gpupool's memory begins with; PyTorch's own begin with the number of their version.
_TOKEN = b"gpsh"


def watch(torch: Any) -> None:
    """Let tensors in gpupool's memory, which ``torch.multiprocessing`` sends, be rebuilt by :func:`rebuild`."""
    reductions = getattr(getattr(torch, "multiprocessing", None), "reductions", None)
    reduce = getattr(reductions, "reduce_tensor", None)
    # A PyTorch that sends in another way says what it says.
    if reductions is None or reduce is None or hasattr(reduce, "_is_watched"):
        return

    # PyTorch has imported it, and no program imports it for this.
    from multiprocessing.reduction import ForkingPickler

    @functools.wraps(reduce)
    def reduce_tensor(tensor: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        received_tensors.refuse_to_send_on(tensor)
        function, arguments = reduce(tensor)
        if any(isinstance(each, bytes) and each.startswith(_TOKEN) for each in arguments):
            return rebuild, (function, arguments)
        return function, arguments

    reduce_tensor._is_watched = True  # type: ignore[attr-defined]
    # PyTorch's other functions look it up there, and picklers by the tensor's class.
    reductions.reduce_tensor = reduce_tensor
    reducers: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind, known in list(reducers.items()):
        if known is reduce:
            reducers[kind] = reduce_tensor


def rebuild(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return the tensor that PyTorch's function makes of its arguments.

    Raises:
        gpupool.Error: The memory cannot be attached.
    """
    if place.was_taken():
        return function(*arguments)
    # What is rebuilt is PyTorch's, which is there.
    torch: Any = sys.modules["torch"]
    torch.cuda._lazy_init()
    # What was received is not sent on.
    watch(torch)
    own = (
        received_tensors.Storages(torch, each) if isinstance(each, type) and hasattr(each, "_new_shared_cuda") else each
        for each in arguments
    )
    return function(*own)
