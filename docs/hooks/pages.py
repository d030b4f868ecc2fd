"""What pages show on the site in place of links, which stand between ``<!-- KIND: NAME -->`` and ``<!-- /KIND -->``.

- `notebook: NAME`: a notebook of examples/, with what its cells print and show, but for its title
"""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[2]


def notebook(name: str) -> str:
    """Return the cells of a notebook, its sections as those of a section, and what its code printed."""
    parts = []
    for cell in json.loads((ROOT / "examples" / name).read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text = re.sub(r"^# .+\n+", "", text)
            parts.append(re.sub(r"^(?=#)", "#", text, flags=re.MULTILINE).replace("](../docs/", "]("))
            continue
        language = "console" if text.startswith("!") else "python"
        parts.append(f"```{language}\n{re.sub(r'^!', '$ ', text)}\n```")
        printed = "".join(line for output in cell["outputs"] for line in output.get("text", []))
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
        shown = "".join(line for output in cell["outputs"] for line in output.get("data", {}).get("text/html", []))
        if shown:
            parts.append(f'<div class="shown">\n{shown}\n</div>')
    return "\n\n".join(parts)


MAKERS = {"notebook": notebook}
PART = re.compile(rf"^<!-- ({'|'.join(MAKERS)}): ([^\n]+) -->\n.*?^<!-- /\1 -->$", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace what is between the comments."""

    def made(part: re.Match[str]) -> str:
        try:
            return MAKERS[part[1]](part[2])
        except (KeyError, OSError, ValueError) as error:
            raise PluginError(f"{page.file.src_path}: {part[1]}: {part[2]}: {error!r}") from error

    return PART.sub(made, markdown)
