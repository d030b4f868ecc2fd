"""The names and colours of memory pools, the same in every panel of a picture."""

from collections.abc import Mapping

from gpupool._plot.picture import COLOURS
from gpupool._traces.event import PoolId


class Pools:
    """The pools of a picture: those with most bytes have a name and a colour each; the others share one."""

    def __init__(self, weights: Mapping[PoolId | None, int]) -> None:
        order = sorted(weights, key=lambda pool: -weights[pool])
        # With one pool too many there is no colour left for "all others" either, so the last two share one.
        shown = len(order) if len(order) <= len(COLOURS) else len(COLOURS) - 1
        self.names = [
            (_name(pool, len(order) == 1), colour) for pool, colour in zip(order[:shown], COLOURS, strict=False)
        ]
        if shown < len(order):
            self.names.append((f"{len(order) - shown} other pools", "grey"))
        self._places = {pool: min(place, shown) for place, pool in enumerate(order)}

    def place(self, pool: PoolId | None) -> int:
        """Return the place of the pool's name among the names."""
        return self._places[pool]


def _name(pool: PoolId | None, is_only: bool) -> str:
    if pool is None:
        return "live" if is_only else "pool unknown"
    return "default pool" if pool == (0, 0) else f"pool ({pool[0]}, {pool[1]})"
