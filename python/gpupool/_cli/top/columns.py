"""The columns of the table: what they show of a process, and which are left out first where there is little room."""

from dataclasses import dataclass

from gpupool._cli.top.snapshot import Holder
from gpupool._report.printable import printable
from gpupool._report.units import size


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    # What it is sorted by, on the command line and with the key.
    key: str
    heading: str
    # The field of a holder that it shows.
    field: str
    # The lower, the longer it stays where there is little room.
    rank: int
    # What the widest of its values takes.
    width: int

    @property
    def is_name(self) -> bool:
        """Whether it is the one with names, which may be cut and takes the room that is left."""
        return self.field == "name"

    @property
    def is_bytes(self) -> bool:
        """Whether it shows sizes, of which the largest come first."""
        return self.field not in ("pid", "name", "priority")

    def cell(self, holder: Holder) -> str:
        """Return what the column shows of a holder: a dash for what a process does not have, of others nothing."""
        value = getattr(holder, self.field)
        if value is None:
            return "" if holder.pid is None else "-"
        if self.is_bytes:
            return short(value)
        return printable(str(value))


def short(nbytes: int) -> str:
    """Return a number of bytes in at most five characters: 51.2G for 51.2 GiB."""
    return size(nbytes).replace(" ", "").removesuffix("iB").removesuffix("B")


COLUMNS = (
    Column("pid", "PID", "pid", 3, 7),
    Column("name", "NAME", "name", 0, 12),
    Column("reserved", "RESERVED", "reserved_bytes", 1, 8),
    Column("live", "LIVE", "live_bytes", 2, 5),
    Column("free", "FREE", "free_bytes", 4, 5),
    Column("asleep", "ASLEEP", "asleep_bytes", 5, 6),
    Column("libraries", "LIBS", "holder_bytes", 7, 5),
    Column("discardable", "DISCARD", "discardable_bytes", 9, 7),
    Column("offered", "OFFERED", "offered_bytes", 11, 7),
    Column("claimed", "CLAIMED", "claimed_bytes", 8, 7),
    Column("guarantee", "GUARANTEE", "guarantee", 10, 9),
    Column("most", "MOST", "most", 6, 5),
    Column("limit", "LIMIT", "system_limit", 13, 5),
    Column("priority", "PRIORITY", "priority", 12, 8),
)
KEYS = tuple(column.key for column in COLUMNS)


def shown(width: int | None) -> list[Column]:
    """Return the columns that fit side by side, one space between them; all of them for None."""
    found = list(COLUMNS)
    while width is not None and sum(column.width + 1 for column in found) - 1 > width and len(found) > 2:
        found.remove(max(found, key=lambda column: column.rank))
    return found


def ordered(holders: tuple[Holder, ...], key: str, is_reversed: bool) -> list[Holder]:
    """Return holders by a column: sizes and priorities from the largest on, what is unknown last.

    Among equals those of lower numbers come first, so that rows stand still.
    """
    (column,) = (each for each in COLUMNS if each.key == key)
    known = [each for each in holders if getattr(each, column.field) is not None]
    unknown = [each for each in holders if getattr(each, column.field) is None]
    falls = (column.is_bytes or column.key == "priority") != is_reversed
    known.sort(key=lambda each: each.pid or 0)
    known.sort(key=lambda each: getattr(each, column.field), reverse=falls)
    return known + sorted(unknown, key=lambda each: each.pid or 0)
