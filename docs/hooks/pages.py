"""Notebooks of examples/ on the site, where pages have links between two comments, as ``<!-- notebook: NAME -->``."""

import json
import re
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
PART = re.compile(r"^<!-- notebook: (\S+) -->\n.*?^<!-- /notebook -->$", re.MULTILINE | re.DOTALL)


def notebook(part: re.Match[str]) -> str:
    """Return the cells of a notebook, its sections as those of a section, and what its code printed and showed."""
    parts = []
    for cell in json.loads((EXAMPLES / part[1]).read_text())["cells"]:
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


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace what is between the comments."""
    return PART.sub(notebook, markdown)
