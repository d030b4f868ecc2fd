"""The samples of the guide and the README run, and the README's tables say what was measured."""

import re
import sys
import uuid

import guide
import pytest


@pytest.mark.parametrize("name", guide.programs(on_gpu=False))
def test_samples_run(name, tmp_path):
    # Ray shall tell nobody that it is used, and leave no token in the user's home.
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
    done = guide.run_apart(name, False, tmp_path, **variables)
    assert done.returncode == 0, done.stderr


def test_every_block_of_python_is_a_sample():
    for page in ["README.md", *guide.ROOT.glob("docs/**/*.md")]:
        text = (guide.ROOT / page).read_text()
        blocks = re.findall(r"^ *```+ *(?:py\b|python|\{ *\.py)", text, re.MULTILINE)
        assert len(blocks) == len(guide.samples(str(page))), page


def test_the_readmes_tables_are_those_of_the_results():
    sys.path.append(str(guide.ROOT / "benches"))
    from table import TABLES

    lines = (guide.ROOT / "README.md").read_text().splitlines()
    heads = {made.splitlines()[0]: made.splitlines() for made in (table() for table in TABLES.values())}
    found = [line for line in lines if line in heads]
    assert len(found) >= 4
    for head in found:
        start = lines.index(head) + 2
        rows = lines[start : lines.index("", start)]
        # It may leave rows out.
        assert set(rows) <= set(heads[head]), head
