"""The memory manager for Numba. It imports Numba, so it is imported when first used."""

import itertools
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from cuda.bindings import driver as bindings
from numba.cuda.cudadrv import driver

from gpupool._frameworks import late as _late
from gpupool._frameworks import pinned_choice
from gpupool._frameworks.numba_mapped import MappedMemory
from gpupool._frameworks.numba_shared import SharedHandle, ordinal
from gpupool._native import (
    DeviceBuffer,
    Forked,
    LibraryError,
    OutOfMemory,
    PinnedBuffer,
    RuntimeUnavailable,
    Stream,
    empty,
    empty_pinned,
    fence,
    memory_stats,
    owns,
    runtime,
    share_at,
)

_Buffer = TypeVar("_Buffer", DeviceBuffer, PinnedBuffer)

# The managers that have a device. Pinned memory is every device's.
_managers: list[weakref.ref["MemoryManager"]] = []

# Memory that waits is freed once there is a page of it, and enough of it for the request that comes.
_PAGE = 2 << 20


class MemoryManager(driver.GetIpcHandleMixin, driver.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """Device memory of one Numba context, from gpupool; pinned memory too where that is chosen, else it is Numba's own.

    https://nvidia.github.io/numba-cuda/user/external-memory.html

    Numba's memory belongs to no stream: kernels on any stream may use an array from the moment it exists, and still run
    when it dies. So it is memory of a stream of its own on which nothing runs, and the work of other streams with it
    before is done. The memory of dead arrays waits in Numba's list of pending deallocations, and behind a fence through
    the whole device all of it is freed at once; the host waits for nothing.

    Dead pinned arrays wait in the same list, and then for the work of all devices so far, which no later work has to
    wait for.
    """

    # It tells what died before a fence or a mark from what died after it, on whichever device.
    _clock = itertools.count(1)

    def __init__(self, *args: Any, context: Any, **named: Any) -> None:
        super().__init__(*args, context=context, **named)
        self._stream: Stream | None = None
        self._fenced = 0
        self._marked = 0
        self._dead_bytes = 0
        # The arrays that died while gpupool knew of a capture, which a fence would spoil.
        self._held: deque[tuple[int, DeviceBuffer | PinnedBuffer]] = deque()

    def initialize(self) -> None:
        """Get ready when the context is made current.

        Raises:
            RuntimeUnavailable: gpupool's devices are not CUDA's.
        """
        if self._stream is not None:
            return
        if runtime() != "cuda":
            raise RuntimeUnavailable(
                f"gpupool's runtime is {runtime()}, whose memory Numba's kernels cannot use; unset GPUPOOL_RUNTIME"
            )
        self.deallocations.memory_capacity = self.get_memory_info().total
        device = ordinal(self.context)
        _late.free_on_oom(self, device, MemoryManager._give_up_the_dead)
        self._stream = Stream(device)
        _managers.append(weakref.ref(self))

    def memalloc(self, size: int) -> Any:
        """Allocate ``size`` bytes, from the pool whose scope the thread is in.

        Raises:
            numba.cuda.cudadrv.driver.CudaAPIError: There is not enough memory: CUDA_ERROR_OUT_OF_MEMORY.
        """
        buffer = self._allocated(size, lambda: empty(size, self._stream))
        pointer = bindings.CUdeviceptr(buffer.ptr)
        finalizer = partial(self._bury, buffer, size)
        return driver.MemoryPointer(weakref.proxy(self.context), pointer, size, finalizer=finalizer)

    def memhostalloc(self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
        """Allocate ``size`` bytes of pinned memory: Numba's own unless gpupool's is chosen, or if write-combined.

        Every device uses gpupool's at the host's address, so that all of it is mapped and portable.

        Raises:
            numba.cuda.cudadrv.driver.CudaAPIError: There is not enough memory: CUDA_ERROR_OUT_OF_MEMORY.
        """
        if wc or not pinned_choice.numba.is_made():
            return super().memhostalloc(size, mapped, portable, wc)
        buffer = self._allocated(size, lambda: empty_pinned(size))
        finalizer = partial(self._bury, buffer, size)
        if not mapped:
            return driver.PinnedMemory(weakref.proxy(self.context), buffer.ptr, size, finalizer=finalizer)
        return self._mapped(buffer.ptr, size, None, finalizer)

    def mempin(self, owner: Any, pointer: int, size: int, mapped: bool = False) -> Any:
        """Pin memory of the host's, as Numba does. What is gpupool's pinned memory already is left as it is."""
        if not (size > 0 and owns(pointer) and owns(pointer + size - 1)):
            return super().mempin(owner, pointer, size, mapped)
        if not mapped:
            return driver.PinnedMemory(weakref.proxy(self.context), pointer, size, owner=owner)
        return self._mapped(pointer, size, owner, None)

    def _allocated(self, size: int, allocate: Callable[[], _Buffer]) -> _Buffer:
        """Return a buffer, before which enough of the dead is freed; with Numba's error if there is no memory."""
        if self._held or self._dead_bytes >= max(size, _PAGE):
            self._give_up_the_dead()
        try:
            return allocate()
        except OutOfMemory as error:
            raise driver.CudaAPIError(bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY, f"{error}") from error

    def _mapped(self, pointer: int, size: int, owner: Any, free: Any) -> Any:
        # Numba holds the memory itself by a weak reference, so that it lives in this table.
        place, allocations = object(), self.allocations

        def finalizer() -> None:
            allocations.pop(place, None)
            if free is not None:
                free()

        memory = MappedMemory(weakref.proxy(self.context), pointer, size, owner=owner, finalizer=finalizer)
        allocations[place] = memory
        return memory.own()

    def _bury(self, buffer: DeviceBuffer | PinnedBuffer, size: int) -> None:
        # This runs wherever the garbage collector does, so it takes no lock.
        self._dead_bytes += size
        self.deallocations.add_item(self._free, (next(self._clock), buffer), size)

    def _free(self, dead: tuple[int, DeviceBuffer | PinnedBuffer]) -> None:
        if not self._is_over(dead):
            self._held.append(dead)
        # Otherwise this was the last reference to the buffer, whose end frees it.

    def _is_over(self, dead: tuple[int, DeviceBuffer | PinnedBuffer]) -> bool:
        """Return whether the memory may be freed: what is submitted from now on waits for all that used it."""
        number, buffer = dead
        if isinstance(buffer, DeviceBuffer):
            return number <= self._fenced or self._fence()
        managers = [manager for this in _managers if (manager := this()) is not None]
        if not all(number <= manager._marked or manager._mark() for manager in managers):
            return False
        for manager in managers:
            # Once freed it waits for this stream, and so for the mark.
            buffer.record_stream(manager._stream)  # type: ignore[arg-type]
        return True

    def _mark(self) -> bool:
        """Let the manager's stream wait for all work so far on the device."""
        now = next(self._clock)
        if not self._pass_through(delay=False):
            return False
        self._marked = now
        return True

    def _fence(self) -> bool:
        """Let all later work on the device wait for all work so far."""
        now = next(self._clock)
        if not self._pass_through(delay=True):
            return False
        self._fenced = self._marked = now
        return True

    def _pass_through(self, delay: bool) -> bool:
        try:
            return fence(self._stream, delay)  # type: ignore[arg-type]
        except Forked:
            # A forked child frees nothing of its parent's.
            return True
        except LibraryError:
            # The driver refuses the fence. Waiting is what Numba does without gpupool.
            self.context.push()
            try:
                self.context.synchronize()
            finally:
                self.context.pop()
        return True

    def _give_up_the_dead(self) -> bool:
        """Free the memory of dead arrays that waits, unless Numba defers that, and return whether any was freed."""
        if self.deallocations.is_disabled:
            return False
        count = len(self.deallocations) + len(self._held)
        self._dead_bytes = 0
        self.deallocations.clear()
        _late.free(self._held, self._is_over)
        return count > 0

    def get_memory_info(self) -> Any:
        """Return free and total bytes, as ``(free, total)``; what gpupool has cached counts as free."""
        free, total = driver.driver.cuMemGetInfo()
        stats = memory_stats(ordinal(self.context))
        return driver.MemoryInfo(free=free + stats.reserved_bytes - stats.live_bytes, total=total)

    def get_ipc_handle(self, memory: Any) -> Any:
        """Return a handle with which another process opens the memory, after all work so far on the device.

        Raises:
            InvalidValue: The memory cannot be shared.
            NotImplementedError: It is no memory of gpupool's, nor of a kind that CUDA's legacy IPC shares.
        """
        attribute = bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        if driver.driver.cuPointerGetAttribute(attribute, memory.device_pointer):
            return super().get_ipc_handle(memory)
        address = int(memory.device_pointer)
        if not owns(address):
            raise NotImplementedError(
                f"{address:#x} is not gpupool's memory, and of a kind that CUDA's IPC handles cannot share: copy it "
                "to an array of cuda.device_array"
            )
        assert self._stream is not None
        if not self._mark():
            raise NotImplementedError("an IPC handle cannot be made while a graph is captured: make it before or after")
        token, offset = share_at(address, self._stream)
        device = driver.driver.get_device(ordinal(self.context))
        return SharedHandle(memory, token, memory.size, device.get_device_identity(), offset)

    def reset(self) -> None:
        """Free the memory of dead arrays that waits.

        Arrays that live keep their memory until they die, as long as the context lives.
        """
        self._give_up_the_dead()
        super().reset()

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface: 1."""
        return 1
