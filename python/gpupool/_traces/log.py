"""The reader of RMM's CSV logs of allocations."""

import csv
import functools
import io
from collections.abc import Callable, Iterator

from gpupool._traces import wrong_file
from gpupool._traces.bounds import MAX_LINE, MAX_SIZE, MAX_STREAMS, MAX_TIME
from gpupool._traces.event import Event, TraceError, pointer

_DAY = 86_400_000_000


def events(
    path: str, text: io.TextIOWrapper, is_cut: Callable[[], bool], tell: Callable[[str], object]
) -> Iterator[Event]:
    """Yield the allocations and frees of a log, in order; it has no pools and no call stacks.

    Args:
        path: The file, for errors.
        text: The log. A program that is killed leaves its last line without an end, and that is left out unless it is
            known to be whole.
        is_cut: Says, once the text is read, whether more of it is known to be missing.
        tell: Is told where the log was cut off, if it was.
    """
    lines = _lines(path, text)
    number, line = next(lines, (1, ""))
    try:
        names = [name.strip().lower() for name in _fields(line)]
    except csv.Error:
        names = []
    missing = [name for name in ("Action", "Pointer", "Size", "Stream") if name.lower() not in names]
    if missing:
        is_cut_there = is_cut() and line[-1:] not in "\r\n"
        raise wrong_file.error(path, "cut off in line 1" if is_cut_there else f"line 1: no column {missing[0]}")
    action_column, pointer_column, size_column, stream_column = map(
        names.index, ("action", "pointer", "size", "stream")
    )
    time_column = names.index("time") if "time" in names else None
    time_of = _clock()
    streams: set[str] = set()

    def is_whole(last: str) -> bool:
        """Return whether the last line, without an end, ends with a stream of the log's that no other begins with."""
        *others, stream = map(str.strip, last.split(","))
        return len(others) == stream_column == len(names) - 1 and [stream] == [
            each for each in streams if each.startswith(stream)
        ]

    try:
        for number, line in lines:
            if line[-1] not in "\r\n" and not is_whole(line):
                # What is left of a line may look like a whole one.
                tell(f"in line {number}")
                return
            if line.isspace():
                continue
            row = _fields(line)
            action = row[action_column].strip()
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
            time = None if time_column is None else time_of(row[time_column].strip())
            # The pointer's text is enough to tell blocks apart.
            block, stream = row[pointer_column].strip(), row[stream_column].strip()
            yield Event(action == "allocate", block, size, _stream(stream), number, time)
            if len(streams) < MAX_STREAMS:
                streams.add(stream)
    except (ValueError, IndexError, csv.Error) as error:
        shown = line.rstrip("\r\n")
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        raise TraceError(
            f"{path}: line {number}: neither an allocation nor a free: {shown!r}; correct or remove the line"
        ) from error
    if is_cut():
        tell(f"after line {number}")


def _lines(path: str, text: io.TextIOWrapper) -> Iterator[tuple[int, str]]:
    """Yield each line with its number. A line that is too long is not read to its end."""
    number = 0
    while line := text.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise TraceError(f"{path}: line {number}: longer than {MAX_LINE} characters; correct or remove the line")
        yield number, line


def _fields(line: str) -> list[str]:
    # A quote that stays open would take the lines after it.
    return next(csv.reader([line], skipinitialspace=True, strict=True)) if '"' in line else line.split(",")


@functools.lru_cache(MAX_STREAMS)
def _stream(text: str) -> int:
    # What is longer is no number of 64 bits, and is not kept.
    stream = pointer(text) if len(text) < 40 else -1
    if not 0 <= stream <= MAX_SIZE:
        raise ValueError(text)
    return stream


def _clock() -> Callable[[str], int | None]:
    """Return a function that reads a log's times as microseconds.

    They are whole numbers of microseconds, or RMM's hours:minutes:seconds:microseconds.
    """
    latest = midnights = 0

    def time_of(text: str) -> int | None:
        nonlocal latest, midnights
        if text.isdecimal():
            return _bounded(int(text))
        fields = text.replace(".", ":").split(":")
        if len(fields) != 4 or not all(field.isdecimal() for field in fields):
            return None
        hours, minutes, seconds = map(int, fields[:3])
        time = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int(fields[3][:6].ljust(6, "0"))
        if time + _DAY // 2 < latest:
            midnights += 1
        latest = time
        return _bounded(time + midnights * _DAY)

    return time_of


def _bounded(time: int) -> int:
    if time > MAX_TIME:
        raise ValueError(time)
    return time
