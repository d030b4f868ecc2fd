"""The reader of RMM's CSV logs of allocations."""

import csv
import functools
import io
from collections.abc import Callable, Iterator

from gpupool._traces.event import MAX_SIZE, Event, TraceError, pointer

_DAY = 86_400_000_000


def events(path: str, lines: io.TextIOWrapper) -> Iterator[Event]:
    """Yield the allocations and frees of a log, in order; it has no pools and no call stacks."""
    reader = csv.reader(lines, skipinitialspace=True)
    row: list[str] = []
    try:
        row = next(reader, [])
        names = [name.strip().lower() for name in row]
        missing = [name for name in ("Action", "Pointer", "Size", "Stream") if name.lower() not in names]
        if missing:
            raise TraceError(
                f"{path}: line 1: no column {missing[0]}: neither an RMM log, whose first line is "
                "Thread,Time,Action,Pointer,Size,Stream, nor a PyTorch memory snapshot"
            )
        action_column, pointer_column, size_column, stream_column = map(
            names.index, ("action", "pointer", "size", "stream")
        )
        time_column = names.index("time") if "time" in names else None
        time_of = _clock()
        stream_of = functools.cache(pointer)
        for row in reader:
            if not row:
                continue
            action = row[action_column]
            # The pointer's text is enough to tell blocks apart.
            if action == "allocate":
                size = int(row[size_column])
                if not 0 <= size <= MAX_SIZE:
                    raise ValueError(size)
            elif action in ("free", "deallocate"):
                size = 0
            elif action == "allocate failure":
                continue
            else:
                raise ValueError(action)
            time = None if time_column is None else time_of(row[time_column])
            yield Event(action == "allocate", row[pointer_column], size, stream_of(row[stream_column]), time)
    except (ValueError, IndexError, csv.Error) as error:
        line = ",".join(row)
        line = line if len(line) <= 80 else f"{line[:77]}..."
        raise TraceError(
            f"{path}: line {reader.line_num}: neither an allocation nor a free: {line!r}; correct or remove the line"
        ) from error


def _clock() -> Callable[[str], int | None]:
    """Return a function that reads a log's times as microseconds.

    They are whole numbers of microseconds, or RMM's hours:minutes:seconds:microseconds.
    """
    latest = midnights = 0

    def time_of(text: str) -> int | None:
        nonlocal latest, midnights
        if text.isdecimal():
            return int(text)
        fields = text.replace(".", ":").split(":")
        if len(fields) != 4 or not all(field.isdecimal() for field in fields):
            return None
        hours, minutes, seconds = map(int, fields[:3])
        time = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int(fields[3][:6].ljust(6, "0"))
        if time + _DAY // 2 < latest:
            midnights += 1
        latest = time
        return time + midnights * _DAY

    return time_of
