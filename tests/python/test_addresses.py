"""gpupool's two addresses, of its guide and of its repository, are the same wherever metadata and pages name them."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
GUIDE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["site_url"]
REPOSITORY = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["repo_url"]


def test_the_homepage_is_the_guide():
    crate = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    conda = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())["about"]
    assert {crate["homepage"], python["Homepage"], python["Documentation"]} == {GUIDE}
    assert {conda["homepage"], conda["documentation"]} == {GUIDE}
    assert {crate["repository"], python["Repository"], conda["repository"]} == {REPOSITORY}


def test_no_page_names_another_address():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "python/gpupool/lib/pkgconfig/gpupool.pc"]
    named = [
        address
        for page in pages
        for address in re.findall(
            r"https://(?:github\.com/[\w-]+/gpupool\b|[\w-]+\.github\.io/gpupool\b/?)", page.read_text()
        )
    ]
    assert {REPOSITORY} <= set(named) <= {GUIDE, REPOSITORY}
