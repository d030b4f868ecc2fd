"""Figures in the README and the pages are what files of results say, and those files say of which code they are."""

import json
import re
import sys

import guide
import pytest

sys.path.append(str(guide.ROOT / "benches"))

import provenance
import quoted

PAGES = [guide.ROOT / "README.md", *sorted((guide.ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_figures_of_a_page_are_those_of_the_results(page):
    text = page.read_text()
    # It would end a cell of a table.
    assert not re.search(r"^<!-- figure", text, re.MULTILINE), "Markdown that is shown as it is ends a paragraph there"
    assert not any("|" in "".join(found.groups()) for found in quoted.FIGURE.finditer(text))
    assert quoted.filled(text) == text, "run `make figures`"


# What is said of sizes, and is not measured.
SAID = {"22 GiB", "64 MiB", "4 MiB"}


def test_no_figure_of_the_readme_is_typed_by_hand():
    text = quoted.FIGURE.sub("", (guide.ROOT / "README.md").read_text())
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    figures = re.findall(r"\b\d[\d.]* (?:ns|us|ms|s|[KMG]iB|GB/s|times)\b|\b\d[\d.]* %", text)
    assert set(figures) <= SAID


def test_each_file_of_results_says_when_where_and_of_which_commit_it_is():
    for folder in provenance.RESULTS.iterdir():
        known = json.loads((folder / provenance.NAME).read_text())
        assert known.keys() == {path.name for path in folder.iterdir()} - {provenance.NAME}, folder.name
        for each in known.values():
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", each["date"])
            assert each["machine"]
            assert each["commit"]


def test_the_files_that_pages_have_figures_of_are_listed(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["provenance.py"])
    assert provenance.main() == 0
    listed = capsys.readouterr().out.splitlines()
    print(*listed, sep="\n")
    assert any(line.startswith("`benches/results/h200/peers.json`: 20") for line in listed)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return a folder of results that the figures are taken from."""
    monkeypatch.setattr(quoted, "RESULTS", tmp_path)
    rounds = [("ours", 1, 30.0), ("theirs", 1, 60.0), ("ours", 2, 31.0), ("theirs", 2, 93.0)]
    lines = [json.dumps({"peer": peer, "round": number, "ns": {"call": time}}) for peer, number, time in rounds]
    (tmp_path / "a.json").write_text("\n".join(lines))
    (tmp_path / "a.txt").write_text("call 1.25 ns\ncall 1.50 ns\n")
    (tmp_path / "a-2.json").write_text(json.dumps({"peer": "ours", "round": 1, "ns": {"call": 29.0}}))
    (tmp_path / "b.txt").write_text("ours 1/2, 3/4\ntheirs 5/6, 7/8\n")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "what", "text"),
    [
        ("a.json", "ns>call peer=ours round=1 as .0f", "30"),
        ("a.json", "ns>call peer=ours as .0f", "30 to 31"),
        ("a.json", "ns>call peer~^(ours|theirs)$ as .1f median", "45.5"),
        ("a.json", "ns>call peer=ours / ns>call peer=theirs as .2f", "0.33 to 0.50"),
        ("a.json", "ns>call peer=ours / ns>call peer=theirs round=1 as .2f max", "0.52"),
        ("a.json", "ns>call peer=ours / round as .1f", "15.5 to 30.0"),
        ("a.json", "ns>~a peer!ours as .0f *0.1 max", "9"),
        ("a.json", "ns>call peer=theirs / ns>call peer=ours as .0f more", "100 to 200"),
        ("a.txt", r"'^call (\S+) ns$' as .1f max", "1.5"),
        ("b.txt", r"'(\d)/\d' '^theirs ' as .0f", "5 to 7"),
        ("a*.json", "ns>call peer=ours as .0f", "29 to 31"),
    ],
)
def test_a_figure_is_computed_from_its_file(results, file, what, text):
    assert quoted.figure(file, what) == text
    page = f"It takes <!-- figure: {file}: {what} -->by hand<!-- /figure --> so long."
    assert quoted.filled(page) == page.replace("by hand", text)
    assert quoted.plain(page) == f"It takes {text} so long."


def test_a_figure_of_nothing_is_refused(results):
    with pytest.raises(ValueError, match=r"a\.json has nothing of ns>call peer=nobody"):
        quoted.figure("a.json", "ns>call peer=nobody as .0f")


@pytest.mark.parametrize(
    ("suffix", "text", "same", "other"),
    [
        (".rs", 'let a = "// b"; // c', 'let a = "// b"; /* d\n */', 'let a = "// e"; // c'),
        (".rs", "/// Doc.\nfn a() { b('\"') } // c", "fn a() { b('\"') }", "fn a() { b('\"'); }"),
        (".rs", 'r#"a " // b"# // c', 'r#"a " // b"#', 'r#"a " // d"#'),
        (
            ".py",
            'def a():\n    """Doc."""\n    return "# b"  # c',
            'def a():\n    return "# b"',
            'def a():\n    return "#"',
        ),
        (".py", 'a = """b"""  # c', 'a = """b"""', 'a = """d"""'),
        (".py", 'a(\n    """b""", c\n)\n"""d"""', 'a(\n    """b""", c\n)', 'a(\n    """b""", e\n)\n"""d"""'),
    ],
)
def test_comments_change_no_digest(suffix, text, same, other):
    stripped = provenance.without_comments(text, suffix)
    assert stripped == provenance.without_comments(same, suffix)
    assert stripped != provenance.without_comments(other, suffix)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return a function that keeps figures of a past code, and what says whether they are of this one."""
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setattr(provenance, "digest", lambda subject: f"{subject} now")
    monkeypatch.setattr(provenance, "instructions", lambda: {"memory": 102.0, "handles": 50.0})
    (tmp_path / "run").mkdir()

    def keep(**known):
        known = {"date": "2026-11-26", "machine": "one GPU", "commit": "abc", **known}
        (tmp_path / "run" / provenance.NAME).write_text(json.dumps({"memory.json": known}))
        return provenance.differences("run/memory.json")

    return keep


def test_figures_are_of_this_code_if_its_sources_are_the_same_or_take_as_many_instructions(kept):
    assert kept(digests={"memory": "memory now"}, instructions={}) == []
    assert kept(digests={"memory": "memory then"}, instructions={"memory": 100.5}) == []
    (said,) = kept(digests={"memory": "memory then"}, instructions={"memory": 90.0})
    assert said == "memory has changed since: a call took 90.0 instructions, and takes 102.0"
    (said,) = kept(digests={"memory": "memory then"}, instructions={})
    assert "valgrind is missing" in said
    (said,) = kept()
    assert "not known of which sources" in said


def test_a_runs_files_get_what_is_known_of_it(tmp_path, monkeypatch):
    (tmp_path / "peers.json").write_text("{}")
    code = tmp_path / "code.json"
    code.write_text(json.dumps({"commit": "abc", "digests": {"handles": "1"}, "instructions": {"handles": 2.0}}))
    monkeypatch.setattr(provenance, "RESULTS", tmp_path.parent)
    provenance.measured(tmp_path, code)
    known = provenance.of(f"{tmp_path.name}/peers.json")
    assert (known["commit"], known["digests"], known["instructions"]) == ("abc", {"handles": "1"}, {"handles": 2.0})
    assert known["machine"]
