"""The samples of the guide and the README run, and the README's tables say what was measured."""

import re
import uuid

import forks
import guide
import pytest
from running import start_command


def programs():
    """Return the names of the programs; what starts a cluster of Ray's is thorough."""
    for name, program in guide.programs(on_gpu=False).items():
        needs_ray = any("needs ray" in sample.told for sample in program)
        yield pytest.param(name, marks=[pytest.mark.thorough] if needs_ray else [])


@pytest.mark.parametrize("name", list(programs()))
def test_samples_run(name, tmp_path, monkeypatch):
    program = guide.programs(on_gpu=False)[name]
    if any(word.startswith("needs ") for sample in program for word in sample.told):
        # Ray shall tell nobody that it is used, and leave no token in the user's home.
        variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
        done = guide.run_apart(name, False, tmp_path, **variables)
    else:
        script = tmp_path / "page.py"
        script.write_text(guide.text_of(program))
        monkeypatch.chdir(tmp_path)
        done = forks.start_program(str(script), timeout=100, **guide.PATIENT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", guide.quoted())
def test_what_a_page_quotes_is_what_is_printed(name, tmp_path):
    block = guide.quoted()[name]
    printed = guide.print_quoted(block, tmp_path)
    if block.how == "outlines":
        # GPUPOOL_RUNTIME, by which devices are simulated here, has a heading of its own.
        assert guide.outline(block.text) == [each for each in guide.outline(printed) if each != "Environment"]
    else:
        # A block may leave out what comes before, such as the command, or a traceback.
        text = re.sub(r"^\$ .*\n", "", block.text)
        assert guide.shape(text) in guide.shape(printed)


def test_every_block_of_python_is_a_sample():
    for page in ["README.md", *guide.ROOT.glob("docs/**/*.md")]:
        text = (guide.ROOT / page).read_text()
        blocks = re.findall(r"^ *```+ *(?:py\b|python|\{ *\.py)", text, re.MULTILINE)
        assert len(blocks) == len(guide.samples(str(page))), page


def test_the_readme_is_read_in_three_minutes():
    text = re.sub(r"<!--.*?-->", "", (guide.ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(text.split()) <= 700


def text_of_all_pages():
    return "".join(path.read_text() for path in [guide.ROOT / "README.md", *guide.ROOT.glob("docs/**/*.md")])


def test_every_example_is_listed():
    folder = guide.ROOT / "examples"
    listed = re.findall(r"\]\(([\w/]+\.\w+)\)", (folder / "README.md").read_text())
    suffixes = (".py", ".rs", ".cpp", ".ipynb")
    assert sorted(listed) == sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.suffix in suffixes
    )


def test_every_picture_is_on_a_page_and_made_by_a_command():
    text = text_of_all_pages() + "".join(path.read_text() for path in guide.ROOT.glob("examples/*.ipynb"))
    commands = "\n".join(re.findall(r"^\$ gpupool .+$", text, re.MULTILINE))
    for path in guide.ROOT.glob("docs/pictures/*"):
        if path.suffix == ".txt":
            assert f"<!-- printed: {path.stem} -->" in text, path.name
        else:
            assert f"(pictures/{path.name})" in text or f"(../docs/pictures/{path.name})" in text, path.name
            assert path.suffix == ".svg" or path.name.startswith("oom-") or f" -o {path.name}" in commands, path.name


@pytest.mark.parametrize("name", ["fits", "compare"])
def test_what_a_command_is_shown_to_print_is_what_it_prints(name):
    """All but the times of gpupool's own row, which differ from run to run."""
    (command,) = re.findall(rf"^\$ gpupool (.+) -o {name}\.png$", text_of_all_pages(), re.MULTILINE)
    words = [word for word in command.split() if word != "-o" and not word.endswith(".html")]
    done = start_command(*(guide.ROOT / word if word.startswith("tests/") else word for word in words))
    assert (done.returncode, done.stderr) == (0, "")
    shown = (guide.ROOT / f"docs/pictures/{name}.txt").read_text().splitlines()
    shown = [line for line in shown if not line.startswith("wrote ")]
    times = re.compile(r"(?<=\d)( +\d+){2}$")
    for printed, expected in zip(done.stdout.splitlines(), shown, strict=True):
        assert times.sub("", printed) == times.sub("", expected)
