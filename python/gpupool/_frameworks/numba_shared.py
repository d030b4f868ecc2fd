"""Numba's IPC handles of gpupool's memory. It imports Numba, so it is imported when first used.

A handle has a token, and travels by any pickler; what opens it there is gpupool, whether or not that is Numba's memory
manager in that process. Numba also passes 64 bytes on alone, for `cuda.open_ipc_array`: what of the token is not the
same for all processes of the machine. Those only a process with gpupool's memory manager opens.
"""

import struct
import weakref
from typing import Any

from numba import cuda
from numba.cuda.cudadrv import driver

from gpupool._native import DeviceBuffer, LibraryError, ShareToken, Stream, attach, empty, fence

# A token: its mark, format, version and runtime, with the id of the machine's run and the user; the process, the name
# it listens at, the secret, the block's number; that of what is sent; the block's bytes, and its device.
_TOKEN = struct.Struct("<32s4s16s16s8s8s8s16s")
# What Numba passes on alone: the mark, what follows the user, and half of the device's UUID.
_SHORT = struct.Struct("<4s4s16s16s8s8s8s")
_MARK = b"gpsh"


class SharedReserved:
    """What stands in the place of ``CUipcMemHandle``, with the field that Numba passes on."""

    def __init__(self, token: ShareToken) -> None:
        _, process, name, secret, block, _, nbytes, device = _TOKEN.unpack(bytes(token))
        self.reserved = _SHORT.pack(_MARK, process, name, secret, block, nbytes, device[:8])


def _token_of(reserved: bytes) -> ShareToken:
    """Return the token that the 64 bytes were made of.

    Raises:
        RuntimeError: This process does not see the device.
    """
    _, process, name, secret, block, nbytes, half = _SHORT.unpack(reserved)
    for ordinal in range(driver.driver.get_device_count()):
        # What is the same for all processes stands in any token.
        own = empty(1, Stream(ordinal)).share()
        common, *_, device = _TOKEN.unpack(bytes(own))
        if device[:8] == half:
            return ShareToken(_TOKEN.pack(common, process, name, secret, block, bytes(8), nbytes, device))
    raise RuntimeError(
        "the memory of the IPC handle is on a device that this process does not see: make it visible here "
        "(CUDA_VISIBLE_DEVICES)"
    )


class SharedHandle(driver.IpcHandle):  # type: ignore[misc]
    """A Numba IPC handle that gpupool opens."""

    def __init__(self, base: Any, token: ShareToken, size: int, source_info: Any = None, offset: int = 0) -> None:
        super().__init__(base, SharedReserved(token), size, source_info, offset)
        self._impl: Any = None
        self._token = token

    def open_direct(self, context: Any) -> Any:
        """Return a pointer to the memory, for a context that reaches it.

        Raises:
            ValueError: It is open already, or this is the process that made it.
        """
        if self._impl is not None:
            raise ValueError("IpcHandle is already opened")
        implementation = OpenedMemory(self)
        pointer = implementation.open(context)
        self._impl = implementation
        return pointer

    def open_staged(self, context: Any) -> Any:
        """Return a pointer to a copy of the memory, on the device of a context that need not reach it.

        Raises:
            ValueError: It is open already, or this is the process that made it.
        """
        self._sentry_source_info()
        if self._impl is not None:
            raise ValueError("IpcHandle is already opened")
        opened, source = OpenedMemory(self), int(driver.Device.from_identity(self.source_info).id)
        with cuda.gpus[source]:
            own = cuda.devices.get_context()
            pointer = opened.open(own)
        copy = context.memalloc(self.size)
        # Numba's copy between devices needs one that reaches the other where memory is mapped.
        places = (copy.device_pointer, context.handle, pointer.device_pointer, own.handle)
        driver.driver.cuMemcpyPeer(*places, self.size)
        with cuda.gpus[source]:
            opened.close()
        self._impl = driver._StagedIpcImpl(self, self.source_info)
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._rebuild, (self._token, self.size, self.source_info, self.offset)

    @classmethod
    def _rebuild(cls, token: ShareToken, size: int, source_info: Any, offset: int) -> "SharedHandle":
        return cls(None, token, size, source_info, offset)


class OpenedMemory(driver._CudaIpcImpl):  # type: ignore[misc]
    """What Numba opens by a handle: gpupool's memory where the handle is gpupool's, else what it always opened."""

    def __init__(self, parent: Any) -> None:
        super().__init__(parent)
        self._token = getattr(parent, "_token", None)
        if self._token is None:
            # cuda.bindings 13.5 has no such field, where Numba cannot pass handles of its own on either.
            reserved = bytes(getattr(self.handle, "reserved", b""))
            if reserved.startswith(_MARK):
                self._token = _token_of(reserved)
        self._buffer: DeviceBuffer | None = None

    def open(self, context: Any) -> Any:
        """Return a pointer to the memory, for which all later work of the device waits as it must.

        Raises:
            ValueError: It is open already, or this is the process that made it.
            RuntimeError: A graph is being captured.
        """
        if self._token is None:
            return super().open(context)
        if self.base is not None:
            raise ValueError("opening IpcHandle from original process")
        if self._buffer is not None:
            raise ValueError("IpcHandle is already opened")
        stream = Stream(ordinal(context))
        buffer = attach(self._token, stream=stream)
        # Numba does not say which streams will use it.
        _order(stream, delay=True)
        self._buffer, self._stream = buffer, stream
        # A view of the block, which lives until it is closed.
        pointer = driver.binding.CUdeviceptr(buffer.ptr + self.offset)
        return driver.MemoryPointer(context=weakref.proxy(context), pointer=pointer, size=self.size, owner=buffer)

    def close(self) -> None:
        """Give the memory up, once the work of all streams with it is done.

        Raises:
            ValueError: It is not open.
            RuntimeError: A graph is being captured.
        """
        if self._token is None:
            super().close()
            return
        if self._buffer is None:
            raise ValueError("IpcHandle not opened")
        _order(self._stream, delay=False)
        buffer, self._buffer = self._buffer, None
        buffer.free(self._stream)


def _order(stream: Stream, delay: bool) -> None:
    """Let the stream wait for all work of the device so far; with `delay`, all later work for the stream.

    Raises:
        RuntimeError: A graph is being captured.
    """
    try:
        if fence(stream, delay):
            return
    except LibraryError:
        # The driver refuses the fence.
        driver.driver.cuCtxSynchronize()
        stream.synchronize()
        return
    raise RuntimeError(
        "Numba's IPC handles cannot be opened or closed while a graph is captured: do it before or after"
    )


def ordinal(context: Any) -> int:
    """Return the number of a context's device; contexts that others made have the driver's own in its place."""
    return int(getattr(context.device, "id", context.device))


# Staged copies use it as well. Handles that are not gpupool's are opened as ever.
driver._CudaIpcImpl = OpenedMemory
