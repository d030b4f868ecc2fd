"""What the benches ask of the CUDA driver itself: plain pinned memory, timed copies, a kernel that takes a while."""

import ctypes
import threading
import time
from pathlib import Path

_KERNELS = Path(__file__).parents[1] / "tests" / "cuda" / "driver" / "kernels.ptx"
_PORTABLE = 1
_TO_DEVICE, _TO_HOST = "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"
_at = ctypes.c_void_p


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """``CUmemAllocationProp``."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """``CUmemAccessDesc``."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class Driver:
    """The driver, with a device's context current in the calling thread."""

    def __init__(self, device: int = 0) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        self._context = _at()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self.enter()
        self._stream = self._object("cuStreamCreate", 1)
        self._spin: _at | None = None

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            message = f"{name} failed with {status}"
            raise RuntimeError(message)

    def _object(self, name: str, *arguments: object) -> _at:
        place = _at()
        self._call(name, ctypes.byref(place), *arguments)
        return place

    def enter(self) -> None:
        """Make the context current in this thread too."""
        self._call("cuCtxSetCurrent", self._context)

    def reach(self, peer: "Driver") -> None:
        """Give this device access to another one's memory, as `cudaDeviceEnablePeerAccess` does."""
        self.enter()
        self._call("cuCtxEnablePeerAccess", peer._context, 0)

    def allocate(self, nbytes: int) -> int:
        """Return the address of device memory, as `cudaMalloc` does."""
        self.enter()
        return self._object("cuMemAlloc_v2", ctypes.c_size_t(nbytes)).value or 0

    def allocate_pinned(self, nbytes: int) -> int:
        """Return the address of pinned memory, as `cudaHostAlloc` does."""
        return self._object("cuMemHostAlloc", ctypes.c_size_t(nbytes), _PORTABLE).value or 0

    def free_pinned(self, address: int) -> None:
        """Free it, as `cudaFreeHost` does."""
        self._call("cuMemFreeHost", _at(address))

    def synchronize(self) -> None:
        """Wait for all work."""
        self._call("cuCtxSynchronize")

    def copy_rates(self, pinned: int, nbytes: int, rounds: int) -> dict[str, float]:
        """Return the best rates of copies from pinned memory to the device and back, in GB/s."""
        device = _at(self.allocate(nbytes))
        start, end = (self._object("cuEventCreate", 0) for _ in range(2))
        milliseconds, rates = ctypes.c_float(), {}
        for name, call in (("to the device", _TO_DEVICE), ("to the host", _TO_HOST)):
            pair = (device, _at(pinned)) if call == _TO_DEVICE else (_at(pinned), device)
            best = float("inf")
            for _ in range(rounds):
                self._call("cuEventRecord", start, self._stream)
                self._call(call, *pair, ctypes.c_size_t(nbytes), self._stream)
                self._call("cuEventRecord", end, self._stream)
                self._call("cuEventSynchronize", end)
                self._call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
                best = min(best, milliseconds.value)
            rates[name] = nbytes / best / 1e6
        for event in (start, end):
            self._call("cuEventDestroy_v2", event)
        self._call("cuMemFree_v2", device)
        return rates

    def spin(self, milliseconds: int) -> None:
        """Start a kernel that runs so long, and return at once."""
        if self._spin is None:
            module = self._object("cuModuleLoadData", ctypes.c_char_p(_KERNELS.read_bytes() + b"\0"))
            self._spin = self._object("cuModuleGetFunction", module, ctypes.c_char_p(b"spin"))
        nanoseconds = ctypes.c_uint64(milliseconds * 1_000_000)
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(nanoseconds), ctypes.c_void_p))
        self._call("cuLaunchKernel", self._spin, 1, 1, 1, 1, 1, 1, 0, self._stream, arguments, None)

    @property
    def stream(self) -> int:
        """The address of the stream of copies and of the kernel."""
        return self._stream.value or 0

    def is_idle(self) -> bool:
        """Whether all work of the stream is done."""
        return self._library.cuStreamQuery(self._stream) == 0

    def extent_times(
        self, nbytes: int, count: int, rounds: int, spins: int = 0, *, in_a_thread: bool = False
    ) -> dict[str, list[float]]:
        """Return the microseconds of the calls for so many extents, beside a kernel that runs for so many milliseconds.

        They can be exported, and registered with network cards, as gpupool's. `in_a_thread` has another thread create
        them, as those are that a range has ready.
        """
        size, none = ctypes.c_size_t(nbytes), ctypes.c_uint64(0)
        whole = ctypes.c_size_t(nbytes * count)
        address = self._object("cuMemAddressReserve", whole, ctypes.c_size_t(0), none, none)
        properties, access = _Properties(1, 1, _Location(1, 0)), _Access(_Location(1, 0), 3)
        # gpuDirectRDMACapable
        properties.flags[1] = 1
        places = [_at((address.value or 0) + place * nbytes) for place in range(count)]
        times: dict[str, list[float]] = {name: [] for name in ("create", "map and open", "unmap", "release")}
        for _ in range(rounds):
            if spins:
                self.spin(spins)
            moments = [time.perf_counter()]
            extents: list[_at] = []

            def create(extents: list[_at] = extents) -> None:
                self.enter()
                extents.extend(self._object("cuMemCreate", size, ctypes.byref(properties), none) for _ in places)

            if in_a_thread:
                maker = threading.Thread(target=create)
                maker.start()
                maker.join()
            else:
                create()
            moments.append(time.perf_counter())
            for place, extent in zip(places, extents, strict=True):
                self._call("cuMemMap", place, size, ctypes.c_size_t(0), extent, none)
            self._call("cuMemSetAccess", address, whole, ctypes.byref(access), ctypes.c_size_t(1))
            moments.append(time.perf_counter())
            self._call("cuMemUnmap", address, whole)
            moments.append(time.perf_counter())
            for extent in extents:
                self._call("cuMemRelease", extent)
            moments.append(time.perf_counter())
            for name, begun, ended in zip(times, moments, moments[1:], strict=False):
                times[name].append((ended - begun) * 1e6)
            if spins:
                self.synchronize()
        self._call("cuMemAddressFree", address, whole)
        return times
