"""PyTorch's tensors in gpupool's memory of another process, received where gpupool is not PyTorch's allocator.

PyTorch rebuilds such a tensor by itself, but for the storage, which its own allocator would have to open. So that is
made here, over attached memory: whatever allocator PyTorch has, and also if nothing here has imported gpupool before.
"""

import threading
from typing import Any

from gpupool import _native

# PyTorch's words.
_SENT_ON = (
    "Attempted to send CUDA tensor received from another process; this is not currently supported. Consider cloning "
    "before sending."
)

_lock = threading.RLock()
# The addresses of what was received and has not ended, with the number of storages there.
_received: dict[int, int] = {}


class Storages:
    """PyTorch's class of storages, but for those that begin in gpupool's memory of another process."""

    def __init__(self, torch: Any, own: Any) -> None:
        self._torch = torch
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return what the class makes."""
        return self._own(*arguments, **options)

    def _new_shared_cuda(
        self,
        device: int,
        handle: bytes,
        nbytes: int,
        offset: int,
        counter: bytes,
        counter_offset: int,
        event: bytes,
        waits: bool,
    ) -> Any:
        """Return a storage of so many bytes at an offset of a block, as PyTorch's function of this name.

        Args:
            device: The ordinal of the device.
            handle: The block's token.
            nbytes: The bytes of the storage.
            offset: Where it begins in the block, in bytes.
            counter: The file in which the sender counts those that have the block.
            counter_offset: The place in it.
            event: The handle of the sender's event.
            waits: Whether the current stream is to wait for that.

        Raises:
            gpupool.Error: The block cannot be attached.
        """
        torch = self._torch
        place = torch.device("cuda", device)
        stream = torch._C._cuda_getCurrentRawStream(device)
        buffer = _native.attach(handle, stream, device)
        memory = _Received(
            torch,
            buffer,
            offset,
            nbytes,
            lambda: self._own._release_ipc_counter(counter, counter_offset, device=device),
        )
        if waits:
            torch.cuda.Event.from_ipc_handle(place, event).wait()
        # PyTorch keeps the object until the storage ends.
        return torch.as_tensor(memory, device=place).untyped_storage()


class _Received:
    """A part of another process's block, as CUDA's array interface tells it, for as long as a storage has it."""

    def __init__(self, torch: Any, buffer: _native.DeviceBuffer, offset: int, nbytes: int, release: Any) -> None:
        self._stream_of = torch._C._cuda_getCurrentRawStream
        self._buffer, self._release, self._address = buffer, release, buffer.ptr + offset
        self.__cuda_array_interface__ = {
            "data": (self._address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "strides": None,
            "version": 3,
        }
        with _lock:
            _received[self._address] = _received.get(self._address, 0) + 1

    def __del__(self) -> None:
        with _lock:
            _received[self._address] -= 1
            if not _received[self._address]:
                del _received[self._address]
        # Its owner has the block back once the work so far on this stream, too, is done.
        self._buffer.free(self._stream_of(self._buffer.device))
        self._release()


def refuse_to_send_on(tensor: Any) -> None:
    """Refuse a tensor in memory that was received, as PyTorch does.

    Raises:
        RuntimeError: It is in such memory.
    """
    if _received and tensor.is_cuda and tensor.untyped_storage().data_ptr() in _received:
        raise RuntimeError(_SENT_ON)
