"""Actions are pinned, CI's jobs make what .ci/run makes, and a release publishes what RELEASING.md lists."""

import itertools
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*"))
USES = re.compile(r"^ *(?:- )?uses: (.*)$", re.MULTILINE)
# An action at a commit, and the version that its tag had there.
PINNED = re.compile(r"([\w.-]+/[\w./-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+")
# What publishes to each place that RELEASING.md names.
PUBLISHES = {
    "PyPI": "uses: pypa/gh-action-pypi-publish@",
    "crates.io": "cargo publish --locked",
    "the release on GitHub": "gh release create",
    "GitHub Pages": "uses: actions/deploy-pages@",
}


def jobs(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())["jobs"]


def commands(job):
    """Return what a job runs, with the values of its matrix."""
    runs = [step["run"] for step in job["steps"] if "run" in step]
    rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
    return [
        re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda name, row=row: row[name[1]], run) for row in rows for run in runs
    ]


def makes(text):
    """Return the targets of each call of make in a script, with the variables it is given."""
    calls = [
        call.split() for call in re.findall(r"\bmake ([^&|;\n]+)", re.sub(r"^ *#.*", "", text, flags=re.MULTILINE))
    ]
    return [
        (
            [word for word in words if not word.startswith("-") and "=" not in word],
            [word for word in words if "=" in word],
        )
        for words in calls
    ]


def makes_of(name):
    return [call for job in jobs(name).values() for run in commands(job) for call in makes(run)]


def rules():
    """Return the targets of the Makefile, each with what it needs or makes in its recipe, and the recipe."""
    found = {}
    for line in (ROOT / "Makefile").read_text().splitlines():
        if rule := re.match(r"(?!\.PHONY)([\w./-]+(?: [\w./-]+)*):(?!=)([^=#]*)(?:##.*)?$", line):
            targets = rule[1].split()
            for target in targets:
                found.setdefault(target, ([], []))[0].extend(set(rule[2].split()) - {"|"})
        elif line.startswith("\t"):
            _, _, made = line.partition("$(MAKE)")
            for target in targets:
                found[target][0].extend(word for word in made.split() if not word.startswith("-"))
                found[target][1].append(line.strip())
    return found


def recipes(calls):
    """Return the recipes that calls of make come to, by target, each with whether its skips are listed."""
    known, found = rules(), set()
    for targets, variables in calls:
        queue = list(targets)
        while queue:
            target = queue.pop()
            needs, recipe = known.get(target, ([], []))
            queue += needs
            text = "\n".join(recipe)
            skips = "SKIPS=tests/skips.txt" in variables and ("$(PYTEST)" in text or "$(SKIPS)" in text)
            # What is in .venv every target makes for itself.
            if recipe and not target.startswith(".venv/"):
                found.add((target, skips))
    # These only make others.
    return {target: skips for target, skips in sorted(found) if target not in ("test", "tests")}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_action_is_pinned_and_tells_its_version(path):
    used = USES.findall(path.read_text())
    assert len(used) == path.read_text().count("uses:") > 0
    assert [line for line in used if not PINNED.fullmatch(line)] == []


def test_an_action_is_of_one_commit_everywhere():
    used = {found.groups() for path in WORKFLOWS for found in PINNED.finditer(path.read_text())}
    assert len(used) == len({action for action, _ in used})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_make_knows_each_target(path):
    named = {target for targets, _ in makes_of(path.name) for target in targets}
    assert named
    assert named - rules().keys() == set()


def test_the_jobs_of_ci_make_what_its_one_command_makes():
    one_command = makes((ROOT / ".ci" / "run").read_text())
    assert recipes(makes_of("ci.yml")) == recipes(one_command)
    assert {"lint", "rust-tests", "python-tests", "thorough", "docs", "wheel", "gpu"} <= recipes(one_command).keys()


def table():
    """Return the rows of RELEASING.md's table: what, the target that builds it, and where it goes."""
    rows = re.findall(r"^\| (.*) \| `make ([\w-]+)` \| (.*) \|$", (ROOT / "RELEASING.md").read_text(), re.MULTILINE)
    assert len(rows) == 4
    return rows


def needed(found, name):
    """Return the jobs that must have succeeded before one starts."""
    direct = found[name].get("needs", [])
    direct = [direct] if isinstance(direct, str) else direct
    return set(direct).union(*(needed(found, each) for each in direct))


def test_a_release_builds_each_row_and_publishes_it_only_then():
    found = jobs("release.yml")
    builders = {
        target: {
            name
            for name, job in found.items()
            for run in commands(job)
            if any(target in each for each, _ in makes(run))
        }
        for _, target, _ in table()
    }
    assert [target for target, names in builders.items() if not names] == []
    for _, _, places in table():
        for place in re.findall("|".join(map(re.escape, PUBLISHES)), places) or pytest.fail(f"{places}: by what?"):
            publishers = [name for name, job in found.items() if PUBLISHES[place] in yaml.safe_dump(job, width=1000)]
            assert len(publishers) == 1, place
            assert set().union(*builders.values()) <= needed(found, publishers[0])


def test_each_index_is_published_to_by_trusted_publishing():
    found = jobs("release.yml")
    for name in ("pypi", "crates-io"):
        assert found[name]["permissions"]["id-token"] == "write"
        assert found[name]["environment"] == "release"
    assert "password" not in yaml.safe_dump(found)
    assert [name for name, job in found.items() if "secrets." in yaml.safe_dump(job)] == ["crates-io"]


def test_the_wheels_are_those_of_the_table():
    (row,) = (what for what, target, _ in table() if target == "dist")
    script = (ROOT / "tests" / "package" / "dist.sh").read_text()
    built = re.findall(r'^bash tests/package/wheel\.sh "\$out" (\S+) (\S+)', script, re.MULTILINE)
    assert sorted(built) == sorted(itertools.product(["x86_64", "aarch64"], ["abi3", "free-threaded"]))
    assert 'sdist.sh "$out"' in script
    assert ">SHA256SUMS" in script
    minor = re.fullmatch(r"Python-3\.(\d+)\.\d+\.tar\.xz", jobs("release.yml")["dist"]["env"]["PYTHON_SOURCES"])[1]
    told = ("x86-64", "aarch64", "`cp311-abi3`", f"`cp3{minor}-cp3{minor}t`", "source distribution", "`SHA256SUMS`")
    assert [name for name in told if name not in row] == []
