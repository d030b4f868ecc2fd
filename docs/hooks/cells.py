"""Names in the cells of tables stay whole: a browser breaks a line after each hyphen, also within a name of code."""

import re

CELL = re.compile(r"<t[dh][ >].*?</t[dh]>", re.DOTALL)
CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
WORD = re.compile(r"[^\s<>]*[^\w\s<>][^\s<>]*")


def on_page_content(html: str, **_: object) -> str:
    """Mark the words of code in cells, whose style is in style.css."""

    def words(code: re.Match[str]) -> str:
        return WORD.sub(r'<span class="whole">\g<0></span>', code[0])

    return CELL.sub(lambda cell: CODE.sub(words, cell[0]), html)
