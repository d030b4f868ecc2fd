"""Numbers among the arguments of commands: within bounds, and sizes of memory."""

import argparse
from collections.abc import Callable

from gpupool._report.units import parse_size, size

# More than any device has.
MOST_BYTES = 1 << 47


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return what reads a whole number within these bounds."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not from {least} to {most}")
        return number

    return read


def memory(least: int) -> Callable[[str], int]:
    """Return what reads a size of memory of at least so many bytes."""

    def read(text: str) -> int:
        try:
            nbytes = parse_size(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if not least <= nbytes <= MOST_BYTES:
            bound = f"at least {size(least)}" if nbytes < least else f"at most {size(MOST_BYTES)}"
            raise argparse.ArgumentTypeError(f"{text!r} is the memory of no device: {bound}")
        return nbytes

    return read
