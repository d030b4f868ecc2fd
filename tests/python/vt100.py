"""A small terminal: what a VT100 would show of what a program writes."""

import codecs
import re

# What a program writes: commands with numbers, commands of a letter, and characters, of which one moves by itself.
_TOKEN = re.compile(
    r"\x1b\[(?P<numbers>[?]?[\d;]*)(?P<command>[A-Za-z])|\x1b(?P<short>[()].|[78=>MDEc])|(?P<one>[^\x1b])"
)
# Commands that change how characters look, or what keys send, and not where anything stands.
_NO_MOVE = ("m", "l", "h")


class Terminal:
    """The characters that are shown, as lines of text, while bytes come in pieces."""

    def __init__(self, rows: int, columns: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._rest = ""
        self._row = self._column = 0
        self._cells = [[" "] * columns for _ in range(rows)]
        # The first and the last line of those that scroll.
        self._region = (0, rows - 1)

    def resize(self, rows: int, columns: int) -> None:
        """Cut what does not fit any more, and add room."""
        cells = [(row + [" "] * columns)[:columns] for row in self._cells]
        self._cells = (cells + [[" "] * columns for _ in range(rows)])[:rows]
        self._row, self._column = min(self._row, rows - 1), min(self._column, columns - 1)
        self._region = (0, rows - 1)

    @property
    def lines(self) -> list[str]:
        """What is shown, without spaces at the right."""
        return ["".join(row).rstrip() for row in self._cells]

    def feed(self, data: bytes) -> None:
        """Take what a program has written."""
        text = self._rest + self._decoder.decode(data)
        at = 0
        while token := _TOKEN.match(text, at):
            at = token.end()
            if token["one"]:
                self._show(token["one"])
            elif token["command"]:
                self._do(token["command"], [int(each or 0) for each in token["numbers"].strip("?").split(";")])
            elif token["short"] == "M":
                self._up()
            else:
                assert token["short"] not in ("D", "E", "c"), f"{token[0]!r} is not known here"
        self._rest = text[at:]

    def _show(self, one: str) -> None:
        if one in "\0\x0e\x0f\a":
            return
        if one == "\r":
            self._column = 0
        elif one == "\b":
            self._column = max(0, min(self._column, len(self._cells[0]) - 1) - 1)
        elif one == "\n":
            self._down()
        elif one == "\t":
            self._column = min(self._column // 8 * 8 + 8, len(self._cells[0]) - 1)
        else:
            # Only the character after the last column's goes to the next line.
            if self._column == len(self._cells[0]):
                self._down()
                self._column = 0
            self._cells[self._row][self._column] = one
            self._column += 1

    def _down(self) -> None:
        first, last = self._region
        if self._row == last:
            self._cells[first : last + 1] = [*self._cells[first + 1 : last + 1], [" "] * len(self._cells[0])]
        else:
            self._row = min(self._row + 1, len(self._cells) - 1)

    def _up(self) -> None:
        first, last = self._region
        if self._row == first:
            self._cells[first : last + 1] = [[" "] * len(self._cells[0]), *self._cells[first:last]]
        else:
            self._row = max(0, self._row - 1)

    def _do(self, command: str, numbers: list[int]) -> None:
        count = max(1, numbers[0])
        last = len(self._cells) - 1, len(self._cells[0]) - 1
        if command == "H":
            row, column = max(1, numbers[0]), max(1, (*numbers, 1)[1])
            self._row, self._column = min(row - 1, last[0]), min(column - 1, last[1])
        elif command in "AB":
            self._row = max(0, min(self._row + (count if command == "B" else -count), last[0]))
        elif command in "CD":
            self._column = max(0, min(self._column + (count if command == "C" else -count), last[1]))
        elif command in "JK":
            # 0 erases all behind, 1 all before, 2 both.
            here = self._row, min(self._column, last[1])
            for row in range(len(self._cells)) if command == "J" else (self._row,):
                for column in range(len(self._cells[0])):
                    place = row, column
                    if numbers[0] == 2 or (place >= here if numbers[0] == 0 else place <= here):
                        self._cells[row][column] = " "
        elif command == "r":
            self._region = max(1, numbers[0]) - 1, min((*numbers, 0)[1] or last[0] + 1, last[0] + 1) - 1
            self._row = self._column = 0
        else:
            assert command in _NO_MOVE, f"{command} with {numbers} is not known here"
