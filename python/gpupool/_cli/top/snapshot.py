"""What devices and the processes on them hold at one moment: what neighbours tell, and what the driver counts."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import gpupool
from gpupool import _native


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds memory of a device: a process, or a pool of one. Sizes are in bytes, and None is unknown or not set.

    The fields are named as those of `gpupool.typing.Neighbour`.
    """

    name: str
    pid: int | None = None
    reserved_bytes: int | None = None
    live_bytes: int | None = None
    free_bytes: int | None = None
    asleep_bytes: int | None = None
    # What other libraries of a process that is watched hold.
    holder_bytes: int | None = None
    discardable_bytes: int | None = None
    offered_bytes: int | None = None
    claimed_bytes: int | None = None
    guarantee: int | None = None
    most: int | None = None
    priority: int | None = None
    system_limit: int | None = None
    # None if the process was not asked for them.
    pools: tuple["Holder", ...] | None = None
    # The same, of its other libraries.
    libraries: tuple["Holder", ...] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has reserved more than it said that it would at most."""
        return self.most is not None and self.reserved_bytes is not None and self.reserved_bytes > self.most


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device, its memory as the driver counts it, and the processes that told of themselves."""

    device: int
    name: str | None = None
    uuid: str | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    # What is used beyond that which the processes tell of.
    others_bytes: int | None = None
    processes: tuple[Holder, ...] = ()
    error: str | None = None

    @property
    def claimed_bytes(self) -> int:
        """What its processes have a right to and have not taken yet."""
        return sum(process.claimed_bytes or 0 for process in self.processes)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Devices at one moment."""

    # Seconds since 1970.
    time: float
    version: str
    runtime: str
    devices: tuple[Device, ...]

    @property
    def is_empty(self) -> bool:
        """Whether no process told of itself."""
        return not any(device.processes for device in self.devices)

    def only(self, device: int | None) -> "Snapshot":
        """Return this with one device, or with all of them for None."""
        if device is None:
            return self
        return replace(self, devices=tuple(each for each in self.devices if each.device == device))

    def to_json(self) -> str:
        """Return this as one JSON object on one line."""
        found = asdict(self)
        for device in found["devices"]:
            for process in device["processes"]:
                for kind, known in (("pools", _OF_POOLS), ("libraries", ("name", "holder_bytes"))):
                    if (parts := process.pop(kind)) is not None:
                        process[kind] = [{name: part[name] for name in known} for part in parts]
        return json.dumps({"schema": 1, **found})


class Watch:
    """Looks at the devices that are here, without a context on any of them.

    Raises:
        RuntimeUnavailable: There is none.
        InvalidValue: There is not the device that was asked for.
    """

    def __init__(self, device: int | None = None) -> None:
        self._runtime, count = gpupool.runtime(), gpupool.device_count()
        if count == 0:
            raise gpupool.RuntimeUnavailable(f"runtime {self._runtime} has no device to watch here")
        if device is not None and not 0 <= device < count:
            last = f", but 0 to {count - 1}" if count > 1 else ", but device 0 alone"
            raise gpupool.InvalidValue(f"there is no device {device} here{last}")
        self._ordinals = range(count)
        self._count: Callable[[str], tuple[int, int] | None] | None = None
        if self._runtime == "cuda":
            # Here, for ctypes is nothing that the other commands need.
            from gpupool._cli.top.nvml import Nvml

            self._count = Nvml().memory

    def look(self, *, pools: bool = False) -> Snapshot:
        """Return what is held now, also by each pool if these are asked for."""
        return Snapshot(
            time=round(time.time(), 3),
            version=gpupool.__version__,
            runtime=self._runtime,
            devices=tuple(
                self._device(ordinal, gpupool.neighbours(ordinal, pools=pools)) for ordinal in self._ordinals
            ),
        )

    def _device(self, ordinal: int, neighbours: Iterable[gpupool.typing.Neighbour]) -> Device:
        processes = tuple(_holder(each) for each in neighbours)
        try:
            info = _native.device_info(ordinal)
        except gpupool.Error as error:
            return Device(device=ordinal, processes=processes, error=str(error))
        total, free = info["total_bytes"], info["free_bytes"]
        used = None if free is None else total - free
        if free is None and self._count is not None and (counted := self._count(info["uuid"])) is not None:
            used, free = counted
            total = used + free
        known = sum((process.reserved_bytes or 0) + (process.holder_bytes or 0) for process in processes)
        return Device(
            device=ordinal,
            name=info["name"],
            uuid=info["uuid"],
            total_bytes=total,
            used_bytes=used,
            free_bytes=free,
            # The processes told of themselves at another moment than the driver.
            others_bytes=None if used is None else max(0, used - known),
            processes=processes,
        )


# What neighbours and pools are asked for; a pool may have less of it.
_ASKED = [field.name for field in fields(Holder) if field.name not in ("name", "pid", "pools", "libraries")]
_OF_POOLS = (
    "name",
    *(name for name in _ASKED if name not in ("holder_bytes", "guarantee", "most", "priority", "system_limit")),
)


def _holder(neighbour: gpupool.typing.Neighbour) -> Holder:
    pools = None if neighbour.pools is None else tuple(_pool(each) for each in neighbour.pools)
    libraries = None
    if neighbour.holders is not None:
        libraries = tuple(Holder(name=name, holder_bytes=nbytes) for name, nbytes in neighbour.holders)
    return Holder(name=neighbour.name, pid=neighbour.pid, pools=pools, libraries=libraries, **_sizes(neighbour))


def _pool(pool: gpupool.typing.NeighbourPool) -> Holder:
    name = "default pool" if pool.id == (0, 0) else f"pool {pool.id}"
    return Holder(name=pool.given_name or name, **_sizes(pool))


def _sizes(told: gpupool.typing.Neighbour | gpupool.typing.NeighbourPool) -> dict[str, Any]:
    return {name: getattr(told, name, None) for name in _ASKED}
