"""Figures in the README and the pages are what files of results say, and those files say of which code they are."""

import gzip
import json
import re
import sys

import guide
import pytest

sys.path.append(str(guide.ROOT / "benches"))

import claims
import parts
import provenance


@pytest.mark.parametrize("page", claims.CLAIMS)
def test_the_figures_of_a_page_are_those_of_the_results(page):
    text = (guide.ROOT / page).read_text()
    assert claims.filled(text, claims.CLAIMS[page]) == text, "run `make figures`"


@pytest.mark.parametrize("page", parts.PAGES, ids=lambda page: page.name)
def test_the_parts_of_a_page_are_as_they_are_made(page):
    text = page.read_text()
    assert parts.filled(text) == text, "run `make figures`"


def test_what_makes_a_part_of_a_page_ends_it():
    for page in parts.PAGES:
        begun = re.findall(r"^<!-- (table|output|notebook|printed): ", page.read_text(), re.MULTILINE)
        assert begun == re.findall(r"^<!-- /(\w+) -->$", page.read_text(), re.MULTILINE), page


# What is said of sizes, and is not measured.
SAID = {"22 GiB", "64 MiB", "4 MiB"}


def test_no_figure_of_the_readme_is_typed_by_hand():
    text = (guide.ROOT / "README.md").read_text()
    found = [claims.pattern(words).search(text) for words in claims.CLAIMS["README.md"]]
    for begin, end in sorted((span for each in found for span in each.regs[1:]), reverse=True):
        text = text[:begin] + text[end:]
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    figures = re.findall(r"\b\d[\d.]* (?:ns|us|ms|s|[KMG]iB|GB/s|times)\b|\b\d[\d.]* %", text)
    assert set(figures) <= SAID


def folder_of(machine):
    """Return the folder for results of a machine, such as h200-x2 for two H200s."""
    found = re.match(r"(?:(\d) )?NVIDIA (H\d+)", machine)
    return found[2].lower() + (f"-x{found[1]}" if found[1] else "") if found else "simulated"


def test_each_file_of_results_says_when_where_and_of_which_commit_it_is():
    for folder in provenance.RESULTS.iterdir():
        known = json.loads((folder / provenance.NAME).read_text())
        assert known.keys() == {path.name for path in folder.iterdir()} - {provenance.NAME, "run.txt"}, folder.name
        for each in known.values():
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", each["date"])
            assert each["machine"]
            assert each["commit"]
            assert folder_of(each["machine"]) == folder.name


def test_the_files_that_pages_have_figures_of_are_listed(capsys):
    assert provenance.main([]) == 0
    listed = capsys.readouterr().out.splitlines()
    print(*listed, sep="\n")
    assert any(line.startswith("`benches/results/h200/peers.json`: 20") for line in listed)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return a folder of results that the figures are taken from."""
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    rounds = [("ours", 1, 30.0), ("theirs", 1, 60.0), ("ours", 2, 31.0), ("theirs", 2, 93.0)]
    lines = [json.dumps({"peer": peer, "round": number, "ns": {"call": time}}) for peer, number, time in rounds]
    (tmp_path / "a.json").write_text("\n".join(lines))
    (tmp_path / "a.txt").write_text("call 1.25 ns\ncall 1.50 ns\n")
    (tmp_path / "b.txt").write_text("ours 1/2, 3/4\ntheirs 5/6, 7/8\n")
    return tmp_path


OURS, THEIRS = 'where({peer: "ours"})[].ns.call', 'where({peer: "theirs"})[].ns.call'


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ('a.json: where({peer: "ours", round: 1})[].ns.call as .0f', "30"),
        (f"a.json: {OURS} as .0f", "30 to 31"),
        ("a.json: map(.ns.call) | median as .1f", "45.5"),
        (f"a.json: [{THEIRS}] | median as .1f", "76.5"),
        ('a.json: ratios({peer: "ours"}; {peer: "theirs"}; .ns.call) as .2f', "0.33 to 0.50"),
        ('a.json: [ratios({peer: "ours"}; {peer: "theirs"}; .ns.call)] | max as .2f', "0.50"),
        ('a.json: where({peer: "ours"})[] | .ns.call / .round as .1f', "15.5 to 30.0"),
        (f"a.json: {THEIRS} / 30 | percent as .0f", "100 to 210"),
        ("a.json: .[] | .nothing, .ns.call as .0f", "30 to 93"),
        (r'a.txt: number("^call (\\S+) ns$") as .2f', "1.25 to 1.50"),
        (r'b.txt: number("^theirs.*?(\\d)/\\d") as .0f', "5"),
        (r'b.txt: number("(\\d)/\\d") as ,.0f', "1 to 7"),
    ],
)
def test_a_figure_is_computed_from_its_file(results, what, text):
    assert claims.figure(what) == text
    page = "It 1 to 2.5 takes\n{} so long, or {}."
    figures = ["b.txt: 7 as .0f", what, "b.txt: 3, 9 as .0f"]
    filled = claims.filled(page.format("99", "1,000 to 2"), {"It {} takes {} so long, or {}.": figures})
    assert filled == page.format(text, "3 to 9").replace("1 to 2.5", "7")


def test_ratios_are_of_as_many_lines(results):
    with pytest.raises(ValueError, match="null"):
        claims.figure('a.json: ratios({}; {peer: "theirs"}; .ns.call) as .2f')


def test_a_table_has_the_figures_that_were_measured(results, monkeypatch):
    columns = {"ours": '{peer: "ours"}', "nobody's": '{peer: "nobody"}'}
    rows = {
        "the first": "a.json: where({round: 1} + {})[].ns.call as .0f",
        "the second": "a.json: where({round: 2} + {})[].ns.call as .0f",
    }
    monkeypatch.setitem(claims.TABLES, "calls", {"head": "ns", "columns": columns, "rows": rows})
    peers = {"head": "calls", "columns": {"median": "a.json: map({}) | median as .1f"}, "rows": {"all": ".ns.call"}}
    monkeypatch.setitem(claims.TABLES, "peers", peers)
    calls = "| ns | ours | nobody's |\n| --- | ---: | ---: |\n| the first | 30 |  |\n| the second | 31 |  |"
    assert claims.table("calls") == calls
    assert claims.table("peers").endswith("| all | 45.5 |")


@pytest.mark.parametrize("page", ["It takes so long.", "It takes 1 so long. It takes 2 so long."])
def test_a_claim_whose_words_are_not_on_its_page_once_is_refused(results, page):
    with pytest.raises(ValueError, match=r"on the page . times, and not once: takes \{\} so"):
        claims.filled(page, {"takes {} so": ["b.txt: 7 as .0f"]})


@pytest.mark.parametrize("figures", [[], ["b.txt: 7 as .0f", "b.txt: 7 as .0f"]])
def test_a_claim_has_a_figure_for_each_place(results, figures):
    with pytest.raises(ValueError, match="zip"):
        claims.filled("It takes 1 so long.", {"takes {} so": figures})


def test_a_figure_of_nothing_is_refused(results):
    what = 'a.json: where({peer: "nobody"})[].ns.call as .0f'
    with pytest.raises(ValueError, match=re.escape(f"there is nothing of {what}")):
        claims.filled("It takes 1 so long.", {"takes {} so": [what]})


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return a function that keeps figures of a past code, and what the code that is here does differently."""
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    now = {"instructions of memory": 102.0, "a.csv driver_calls": 7, "a.csv moved_pages": 3, "a.csv ratio": 1.002}
    monkeypatch.setattr(provenance, "works", lambda: now)
    (tmp_path / "run").mkdir()

    def keep(**then):
        known = {"date": "2026-11-26", "machine": "one GPU", "commit": "abc", **({"works": now | then} if then else {})}
        (tmp_path / "run" / provenance.NAME).write_text(json.dumps({"memory.json": known}))
        return provenance.differences("run/memory.json")

    return keep


@pytest.mark.parametrize(
    ("what", "then", "now"),
    [
        ("instructions of memory", 100.5, None),
        ("instructions of memory", 90.0, "102.0"),
        ("instructions of handles", 90.0, "unknown"),
        ("a.csv driver_calls", 7, None),
        ("a.csv driver_calls", 8, "7"),
        ("a.csv moved_pages", 4, "3"),
        ("a.csv ratio", 1.003, "1.002"),
        ("b.csv ratio", 1.003, "unknown"),
    ],
)
def test_figures_are_of_this_code_if_it_works_the_same(kept, what, then, now):
    assert kept(**{what: then}) == ([f"{what}: {then} then, {now} now"] if now else [])


def test_figures_of_which_only_the_commit_is_known_are_compared_with_nothing(kept):
    assert kept() == []


def test_what_is_told_of_logs_is_what_their_replays_do(tmp_path, monkeypatch):
    (tmp_path / "tests/data").mkdir(parents=True)
    log = "Action,Pointer,Size,Stream\nallocate,0x1,6291456,0x0\nfree,0x1,0,0x0\n"
    (tmp_path / "tests/data/a.csv.gz").write_bytes(gzip.compress(log.encode()))
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    told = provenance._replayed()
    assert told["a.csv.gz driver_calls"] > 0
    assert (told["a.csv.gz moved_pages"], told["a.csv.gz ratio"]) == (0, 1)


def test_a_runs_files_get_what_is_known_of_it(tmp_path, monkeypatch):
    (tmp_path / "peers.json").write_text("{}")
    code = tmp_path / "code.json"
    code.write_text(json.dumps({"commit": "abc", "works": {"instructions of handles": 2.0}}))
    monkeypatch.setattr(provenance, "RESULTS", tmp_path.parent)
    provenance.measured(tmp_path, code)
    known = provenance.of(f"{tmp_path.name}/peers.json")
    assert (known["commit"], known["works"]) == ("abc", {"instructions of handles": 2.0})
    assert known["machine"]
