"""The built site's search finds names in the reference first, and questions in the guide.

`make docs` runs this over what it has built; without node, which runs the search, it says so and tries nothing.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SITE = HERE.parents[1] / "site"
# What people ask in words, and the page that must come first.
QUESTIONS = {
    "out of memory": "out-of-memory/",
    "CUDA out of memory": "out-of-memory/",
    "gigabytes free": "out-of-memory/",
    "two processes": "neighbours/",
    "memory grows": "out-of-memory/",
    "memory pool": "memory/",
    "pinned memory": "pinned-memory/",
    "pytorch": "pytorch/",
    "several gpus": "memory/",
    "ATen": "from-aten/",
    "take it out": "take-it-out/",
    "does it help": "does-it-help/",
    "Grafana": "statistics/",
    "notebooks": "pictures/",
    "install": "installing/",
    "uninstall": "installing/",
    "benchmark": "performance/",
    "leak": "out-of-memory/",
    "OutOfMemoryError": "out-of-memory/",
    "torch enable": "reference/",
    "DDP": "pytorch/",
    "Colab": "support/",
    "KV cache": "ranges/",
    "kvcached": "ranges/",
    "paged": "ranges/",
    "discardable": "ranges/",
    "virtual memory": "ranges/",
    "MPS": "neighbours/",
    "HAMi": "neighbours/",
    "oversubscription": "neighbours/",
}

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="node is missing, which runs the site's search"),
    pytest.mark.skipif(not SITE.exists(), reason="the site is not built: make docs"),
]


def search(queries):
    """Return the sections that each query finds, in their order: page by page, and in each section by section."""
    command = ["node", str(HERE / "search.mjs"), str(SITE), *queries]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def names():
    """Return every name of the reference, without those that Python itself calls."""
    index = json.loads((SITE / "search/search_index.json").read_text())
    found = [re.search(r"#(gpupool(?:\.\w+)+)$", section["location"]) for section in index["docs"]]
    return [name[1] for name in found if name and "__" not in name[1]]


def test_names_find_their_place_in_the_reference_first():
    # As it is written in full, without the package's name, and without its class or module where that says enough.
    meant = {}
    for name in names():
        meant.setdefault(name, []).append(name)
        meant.setdefault(name.removeprefix("gpupool."), []).append(name)
    assert {"gpupool.MemPool", "MemPool", "memory_stats", "MemPool.trim"} < meant.keys()
    found = search(meant)
    first = {query: pages[0][0].split("#")[-1] if pages else None for query, pages in found.items()}
    # The search does not tell capitals: `stream` is also `Stream`.
    wrong = {
        query: name for query, name in first.items() if str(name).lower() not in [one.lower() for one in meant[query]]
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("method", "place"),
    [
        ("handle", "reference/#gpupool.HandlePool.handle"),
        ("lease", "reference/#gpupool.typing.Lease"),
        ("copy_from", "reference/#gpupool.DeviceBuffer.copy_from"),
        ("trim", "reference/#gpupool.MemPool.trim"),
    ],
)
def test_the_name_of_a_method_finds_it(method, place):
    assert search([method])[method][0][0] == place


def test_questions_find_the_guide_first():
    found = search(QUESTIONS)
    assert {query: pages[0][0].split("#")[0] for query, pages in found.items()} == QUESTIONS
