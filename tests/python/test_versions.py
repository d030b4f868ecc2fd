"""Every file that names gpupool's version, or the Rust that it needs, names the same: what a release begins with."""

import re
import shutil

import pytest
from package import versions


@pytest.fixture
def copy(tmp_path):
    for name in ("Cargo.toml", "pyproject.toml", "CHANGELOG.md", *versions.PLACES, *versions.RUST):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(versions.ROOT / name, tmp_path / name)
    return tmp_path


def test_all_files_name_one_version():
    assert versions.disagreements(versions.ROOT) == []


@pytest.mark.parametrize(("name", "pattern"), [*versions.PLACES.items(), *versions.RUST.items()])
def test_a_file_that_names_another_is_told(copy, name, pattern):
    text = (copy / name).read_text()
    version = re.search(pattern, text, re.MULTILINE)
    (copy / name).write_text(f"{text[: version.start(1)]}9.9{text[version.end(1) :]}")
    (told,) = versions.disagreements(copy)
    assert told == f"{name} says 9.9, and Cargo.toml {version[1]}"


@pytest.mark.parametrize("name", [*versions.PLACES, *versions.RUST])
def test_a_file_that_names_none_is_told(copy, name):
    (copy / name).write_text("")
    assert [told.partition(" after ")[0] for told in versions.disagreements(copy)] == [f"{name} has no version"]


def test_a_version_is_set_everywhere(copy):
    before = {name: (copy / name).read_text() for name in ("Cargo.toml", *versions.PLACES)}
    old = versions.tomllib.loads(before["Cargo.toml"])["package"]["version"]
    versions.set_version(copy, "9.8.7")
    assert versions.disagreements(copy) == []
    for name, text in before.items():
        after = (copy / name).read_text()
        changed = [pair for pair in zip(text.splitlines(), after.splitlines(), strict=True) if len(set(pair)) > 1]
        assert changed == [(line, line.replace(old, "9.8.7")) for line, _ in changed]
        assert len(changed) == 1, name


def released(copy, heading, link, waiting=""):
    """Write a changelog; return what keeps Cargo.toml's version from being published."""
    version = versions.tomllib.loads((copy / "Cargo.toml").read_text())["package"]["version"]
    text = f"# Changelog\n\n## [Unreleased]\n{waiting}\n{heading}\n\n### Added\n\n- All.\n\n[Unreleased]: https://x\n{link}\n"
    (copy / "CHANGELOG.md").write_text(text.replace("VERSION", version))
    return versions.unreleased(copy, f"v{version}")


def test_a_version_that_the_changelog_has_can_be_published(copy):
    assert released(copy, "## [VERSION] - 2026-11-30", "[VERSION]: https://x") == []
    assert [told.partition(",")[0] for told in versions.unreleased(copy, "v9.9.9")] == ["the tag is v9.9.9"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("## [VERSION]", "[VERSION]: https://x"), "no heading"),
        (("## [VERSION] - 2026-11-30", ""), "no link"),
        (("## [VERSION] - 2026-11-30", "[VERSION]: https://x", "\n- More.\n"), "still has text under Unreleased"),
    ],
)
def test_one_that_it_lacks_or_says_more_than_cannot(copy, arguments, told):
    (found,) = released(copy, *arguments)
    assert told in found
