"""The README that wheels and source distributions carry to PyPI has links that work there."""

import csv
import io
import tarfile
import zipfile
from base64 import urlsafe_b64encode
from email import message_from_bytes
from hashlib import sha256

import pytest
from package import description

README = """# Title

[a page](docs/page.md#part), [`code`](docs/page.md), [here](#part), [a folder](docs), ![a picture](docs/one.png)
[elsewhere](https://example.org/a.md), and `[code](code.md)`.

## Part

```
[more code](code.md)
```
"""
HERE = "https://example.org/x/y"
ON_PYPI = (
    README.replace("(docs/page.md", f"({HERE}/blob/v1.2/docs/page.md")
    .replace("(#part)", f"({HERE}/blob/v1.2/README.md#part)")
    .replace("(docs)", f"({HERE}/tree/v1.2/docs)")
    .replace("(docs/one.png)", f"({HERE}/raw/v1.2/docs/one.png)")
)
METADATA = f"Metadata-Version: 2.4\nName: x\nVersion: 1.2\n\n{README}".encode()


@pytest.fixture
def root(tmp_path):
    (tmp_path / "pyproject.toml").write_text(f'[project.urls]\nRepository = "{HERE}"\n')
    (tmp_path / "Cargo.toml").write_text('[package]\nversion = "1.2"\n')
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# Page\n\n## Part\n")
    (tmp_path / "docs" / "one.png").touch()
    (tmp_path / "README.md").write_text(README)
    return tmp_path


def test_links_lead_to_the_version_in_the_repository(root):
    assert description.absolute(README, root) == ON_PYPI


def test_a_wheel_has_them_and_its_record_knows(root, tmp_path):
    wheel = tmp_path / "x-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as new:
        new.writestr("x.py", "1\n")
        new.writestr("x-1.2.dist-info/METADATA", METADATA)
        new.writestr("x-1.2.dist-info/RECORD", "x.py,sha256=a,2\nx-1.2.dist-info/METADATA,sha256=b,9\nRECORD,,\n")
    description.rewrite_wheel(wheel, root)
    with zipfile.ZipFile(wheel) as after:
        metadata = after.read("x-1.2.dist-info/METADATA")
        record = after.read("x-1.2.dist-info/RECORD").decode()
        assert after.read("x.py") == b"1\n"
    assert message_from_bytes(metadata).get_payload() == ON_PYPI
    digest = urlsafe_b64encode(sha256(metadata).digest()).decode().rstrip("=")
    assert list(csv.reader(io.StringIO(record))) == [
        ["x.py", "sha256=a", "2"],
        ["x-1.2.dist-info/METADATA", f"sha256={digest}", str(len(metadata))],
        ["RECORD", "", ""],
    ]


def test_a_source_distribution_has_them_and_keeps_its_readme(root, tmp_path):
    sdist = tmp_path / "x-1.2.tar.gz"
    with tarfile.open(sdist, "w:gz") as new:
        for name, data in (("x-1.2/PKG-INFO", METADATA), ("x-1.2/README.md", README.encode())):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            new.addfile(info, io.BytesIO(data))
    description.rewrite_sdist(sdist, root)
    with tarfile.open(sdist) as after:
        told = {name: after.extractfile(name).read() for name in after.getnames()}
    assert message_from_bytes(told["x-1.2/PKG-INFO"]).get_payload() == ON_PYPI
    assert told["x-1.2/README.md"].decode() == README


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("blob/v1.2/docs/page.md#part", "blob/v1.2/docs/gone.md"),
        ("blob/v1.2/docs/page.md#part", "blob/v1.2/docs/page.md#gone"),
        (f"{HERE}/raw/v1.2/docs/one.png", "docs/one.png"),
        (f"{HERE}/blob/v1.2/README.md#part", "#part"),
    ],
)
def test_a_link_that_leads_nowhere_is_told(root, before, after):
    pytest.importorskip("markdown_it")
    assert description.dead(ON_PYPI, root) == []
    (found,) = description.dead(ON_PYPI.replace(before, after), root)
    assert found.endswith(after)


def test_every_link_of_the_readme_leads_somewhere():
    pytest.importorskip("markdown_it")
    text = (description.ROOT / "README.md").read_text()
    assert description.dead(description.absolute(text, description.ROOT), description.ROOT) == []
