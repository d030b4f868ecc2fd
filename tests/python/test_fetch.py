"""What tests compile with is fetched once, by whichever of pytest's processes comes first."""

import io
import re
import zipfile
from contextlib import contextmanager

from pytorch import fetch


def wheel_of(name: str) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(name, "text")
    file.seek(0)
    return file


def test_two_processes_may_fetch_the_same_at_once(tmp_path, monkeypatch):
    out = tmp_path / "headers"

    @contextmanager
    def read(_requirement):
        # Another process is done before this one.
        (out / "include").mkdir(parents=True)
        (out / "include" / "a.h").write_text("text")
        yield wheel_of("include/a.h")

    monkeypatch.setattr(fetch, "_read_in_parts", read)
    fetch.extract("a-library==1", re.compile("include/"), out)
    assert [path.read_text() for path in out.rglob("*.h")] == ["text"]
    assert list(tmp_path.iterdir()) == [out]
