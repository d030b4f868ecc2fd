"""Objects in notebooks: the HTML has the facts of the repr, is well formed, and takes nothing from elsewhere."""

import re
import threading
from pathlib import Path
from xml.etree import ElementTree

import gpupool
import numpy
import pytest
from forks import Machine
from gpupool._plot import output as _output
from gpupool._report.units import size
from running import functions_of, run_program, start_command
from test_plot import legend
from test_plot import page as panels_of

MIB = 1 << 20
LOG = Path(__file__).parents[1] / "data/two_streams-1.csv.gz"


def parsed(html):
    """Return an object's HTML as a tree, which has neither scripts nor style sheets, and nothing to load."""
    tree = ElementTree.fromstring(html)
    assert tree.tag == "div"
    for part in tree.iter():
        tag = part.tag.rpartition("}")[2]
        assert tag in {
            "div",
            "span",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "pre",
            "svg",
            "g",
            "path",
            "line",
            "text",
            "tspan",
        }
        for name, value in part.attrib.items():
            assert not name.startswith("on"), name
            assert "url(" not in value
            assert "//" not in value
        # A page has a colour of text of its own, light or dark.
        style = part.get("style", "")
        assert re.findall(r"(?<![-\w])color:([^;]+)", style) in ([], ["inherit"])
        if tag == "text":
            assert part.get("fill") == "currentColor"
    return tree


def text_of(html):
    """Return the words that are seen."""
    return " ".join(" ".join(parsed(html).itertext()).split())


def words(text):
    return re.findall(r"[^\s,;]+", text)


@pytest.fixture
def pool():
    pool = gpupool.MemPool(limit=64 * MIB)
    with gpupool.use_mem_pool(pool):
        buffer = gpupool.empty(3 * MIB)
    yield pool
    del buffer


def test_a_pool_shows_what_its_repr_tells(pool):
    shown = text_of(pool._repr_html_())
    stats = pool.stats()
    for told in (str(pool.id), "0 (simulated)", "64.0 MiB", f"{stats.live_bytes} B", f"{stats.reserved_bytes} B"):
        assert told in shown
    assert "closed" not in shown
    pool.sleep()
    assert "asleep" in text_of(pool._repr_html_())
    pool.wake()
    assert "asleep" not in text_of(pool._repr_html_())
    pool.close()
    assert "closed" in repr(pool)
    assert "closed" in text_of(pool._repr_html_())


def test_a_pool_that_was_not_made_has_its_repr_alone():
    pool = gpupool.MemPool.__new__(gpupool.MemPool)
    assert "not made" in repr(pool)
    assert pool._repr_html_() is None


def test_a_subclass_has_its_own_name(nothing_left):
    class Cache(gpupool.MemPool):
        pass

    pool = Cache()
    assert text_of(pool._repr_html_()).startswith(repr(pool).partition("(")[0])
    assert "Cache" in repr(pool)


def test_another_threads_pool_is_shown(pool):
    shown = []
    thread = threading.Thread(target=lambda: shown.append(pool._repr_html_()))
    thread.start()
    thread.join()
    assert text_of(shown[0]) == text_of(pool._repr_html_())


def test_a_range_shows_what_its_repr_tells(nothing_left):
    pool = gpupool.MemPool()
    pages = pool.reserve_range(8 * MIB)
    pages.commit([0, 2])
    shown = text_of(pages._repr_html_())
    for told in (hex(pages.ptr), f"{8 * MIB} B", f"{4 * MIB} B", "0 (simulated)"):
        assert told in shown
    pages.free()
    assert "freed" in repr(pages)
    assert "freed" in text_of(pages._repr_html_())


def rows_of(html):
    """Return a table's rows below its head, each as its cells' texts."""
    return [["".join(cell.itertext()) for cell in row] for row in parsed(html).iter("tr")][1:]


def test_a_pool_of_handles_shows_its_counts_and_its_limit(nothing_left):
    pool = gpupool.HandlePool("shown", iter(range(1, 100)).__next__, lambda handle: None)
    pool.limit = 3
    with pool.lease():
        shown = {name: rounded for name, rounded, _ in rows_of(pool._repr_html_())}
    assert (shown["name"], shown["handle_limit"], shown["created"], shown["leased"]) == ("shown", "3", "1", "1")
    assert "closed" not in text_of(pool._repr_html_())
    pool.close()
    assert "closed" in text_of(pool._repr_html_())


def test_a_pool_of_handles_whose_library_is_not_loaded_shows_that_and_loads_nothing():
    assert "not loaded" in text_of(gpupool.cublas._repr_html_())
    assert not gpupool.cublas.loaded


def test_a_pool_of_handles_shows_its_library(tmp_path):
    machine = Machine("cuda", tmp_path)
    machine.install("cublas")
    machine.run("telling/handle_pools.py", "shows_its_library", "cublas")


def test_counts_are_all_shown_exactly(pool):
    gpupool.simulated.handle()
    for stats in (gpupool.memory_stats(), pool.stats(), gpupool.simulated.stats()):
        rows = rows_of(stats._repr_html_())
        assert [row[0] for row in rows] == [re.sub("_(bytes|seconds)$", "", name) for name in stats.as_dict()]
        for row, (name, count) in zip(rows, stats.as_dict().items(), strict=True):
            unit = "B" if name.endswith("bytes") else "s" if name.endswith("seconds") else None
            assert row[2] == (f"{count} {unit}" if unit else "")
            assert row[1] == (size(count) if unit == "B" else row[1] if unit else str(count))


def test_a_summary_has_the_words_of_its_text(pool):
    gpupool.simulated.warm(2)
    kept = gpupool.empty_pinned(MIB)
    summary = gpupool.memory_summary()
    assert kept.nbytes == MIB
    for each in (summary, *summary.devices):
        missing = set(words(str(each))) - set(words(text_of(each._repr_html_())))
        assert missing == set()
    (bar, *_) = (part for part in parsed(summary._repr_html_()).iter("div") if "display:flex" in part.get("style", ""))
    titles = [part.get("title") for part in bar]
    assert f"live {size(summary.devices[0].live_bytes)}" in titles
    assert f"free {size(summary.devices[0].free_bytes)}" in titles
    gpupool.simulated.trim()


def test_the_report_has_the_words_of_its_text(monkeypatch):
    # What is set from outside, and what looks like HTML.
    monkeypatch.setenv("GPUPOOL_STRANGE", "<script>alert('&')</script>")
    info = gpupool.info()
    html = info._repr_html_()
    assert "<script>alert('&')</script>" in str(info)
    assert "<script" not in html
    assert set(words(str(info))) <= set(words(text_of(html)))
    assert "border-left:3px solid #e69f00" in html, (
        "a warning, of the variable that gpupool does not know, is not marked"
    )


def test_names_are_escaped(nothing_left):
    count = iter(range(1, 9))
    name = '<b onclick="x">&amp;</b>'
    pool = gpupool.HandlePool(name, lambda: next(count), lambda handle: None)
    pool.handle()
    html = gpupool.memory_summary()._repr_html_()
    assert name not in html
    assert name in text_of(html)
    pool.close()


def test_a_plot_of_a_file_is_the_picture_that_the_command_draws(tmp_path):
    plot = gpupool.plot(LOG, at="peak")
    assert "ratio" in repr(plot)
    html = plot._repr_html_()
    shown = text_of(html)
    page = tmp_path / "page.html"
    plot.save(page)
    done = start_command("plot", LOG, "--at", "peak", "-o", tmp_path / "command.html")
    assert done.returncode == 0, done.stderr
    assert page.read_text() == (tmp_path / "command.html").read_text()
    memory, addresses = panels_of(page)["vconcat"]
    for told in legend(memory, "fill") + legend(memory, "stroke") + legend(addresses, "fill"):
        assert told in shown
    # A notebook keeps it.
    assert len(html) < 150_000


def test_a_plot_keeps_peaks():
    html = gpupool.plot(LOG, at="peak")._repr_html_()
    area = next(part for part in parsed(html).iter() if part.get("fill") == "#56b4e9" and len(part.get("d", "")) > 1000)
    heights = [float(y) for y in re.findall(r"[ML][\d.]+,([\d.]+)", area.get("d"))]
    # The axis ends five hundredths above the most that is drawn, and reserved memory is above live memory.
    assert 12 < min(heights) < 20


def test_a_plot_says_which_command_brings_what_draws_it(monkeypatch):
    plot = gpupool.plot(LOG)
    monkeypatch.setattr(_output.importlib.util, "find_spec", lambda name: None)
    assert (
        text_of(plot._repr_html_())
        == f"{plot!r} pictures need vl-convert, which is missing: pip install 'gpupool[plot]'"
    )


def test_a_plot_of_this_process(pool):
    gpupool.record_memory_history()
    with gpupool.use_mem_pool(pool):
        kept = [gpupool.empty(MIB) for _ in range(3)]
    plot = gpupool.plot()
    gpupool.record_memory_history(None)
    assert repr(plot).startswith("<gpupool.typing.Plot of this process: a memory snapshot, device 0")
    shown = text_of(plot._repr_html_())
    assert f"pool {pool.id}" in shown
    assert "Memory over time" in shown
    assert "Address map when the snapshot was written" in shown
    assert len(kept) == 3


@pytest.mark.parametrize(
    "at",
    ["start", -1, float("nan"), [], "inf", True, 1e300, pytest.param(10**400, id="huge"), b"end", numpy.array([1, 2])],
)
def test_a_moment_that_is_none_is_refused(at):
    with pytest.raises(gpupool.InvalidValue, match="at must be"):
        gpupool.plot(LOG, at=at)


def test_what_cannot_be_drawn_says_why(tmp_path):
    with pytest.raises(gpupool.Error, match="cannot be read"):
        gpupool.plot(tmp_path / "missing.pickle")
    with pytest.raises(gpupool.Error, match="does not name devices"):
        gpupool.plot(LOG, device=0)
    with pytest.raises(gpupool.InvalidValue, match=r"a \.html, \.png or \.svg"):
        gpupool.plot(LOG).save("plot.pdf")


@pytest.mark.parametrize("function", functions_of("telling/notebook_objects.py"))
def test_objects_of_a_process(function):
    run_program("telling/notebook_objects.py", function)
