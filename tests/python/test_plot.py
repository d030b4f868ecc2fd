"""The command ``gpupool plot``: what its pictures show."""

import json
import re
from array import array
from itertools import pairwise
from pathlib import Path

import pytest
from gpupool.__main__ import main
from gpupool._plot import draw as _plot
from gpupool._plot import output as _output
from gpupool._plot import picture as _picture
from gpupool._plot import sampling as _sampling
from gpupool._plot import spec as _spec
from gpupool._plot import thin as _thin
from gpupool._traces import trace as _trace
from running import run_program, start_program
from snapshots import FRAMES, ZERO, block, entry, handle, segment, write

DATA = Path(__file__).parents[1] / "data"
KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def draw():
    """Make the picture of a file."""

    def draw(path, device=None, moment=None):
        return _plot.draw(_trace.read_file(str(path), device), moment)

    return draw


def page(path):
    """Return the specification that a page draws."""
    text = Path(path).read_text(encoding="utf-8")
    return json.loads(re.search(r"^const spec = (.*);$", text, re.MULTILINE)[1])


def rows_of(layer):
    """Return the rows that a layer's columns stand for."""
    (columns,) = layer["data"]["values"]
    assert layer["transform"][0] == {"flatten": list(columns)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def layers(panel, kind):
    """Return the layers of a panel with marks of a kind."""
    return [layer for layer in panel["layer"] if layer["mark"]["type"] == kind]


def lines_of(panel):
    """Return the points of each line of a chart, by its label."""
    return {
        layer["encoding"]["stroke"]["datum"]: [(row["x"], row["y"]) for row in rows_of(layer)]
        for layer in layers(panel, "line")
    }


def steps(line):
    return list(zip(line.x, line.y, strict=True))


def rows(chart):
    """Return the chart's areas: time and the bytes of each."""
    return list(zip(chart.x, *(area.y for area in chart.areas), strict=True))


@pytest.fixture
def snapshot(tmp_path):
    """Write two pools, a block from before, a waiting one, a failure, handles, and a second device."""
    history = [
        entry("free_completed", 0x1_0000, 4 * KIB, 10),
        entry("segment_alloc", 0x80_0000, 2 * MIB, 20, pool_id=(0, 1)),
        entry("alloc", 0x80_0000, 1000, 20, pool_id=(0, 1), frames=FRAMES),
        entry("alloc", 0x2_0000, 64 * KIB, 30, pool_id=(0, 0), frames=FRAMES),
        {"action": "oom", "size": 8 << 30, "device_free": MIB, "stream": 0, "time_us": ZERO + 40, "frames": []},
        entry("free_requested", 0x2_0000, 64 * KIB, 50, pool_id=(0, 0)),
    ]
    segments = [
        segment(0x80_0000, block(512 * KIB, "active_allocated", 1000, frames=FRAMES), block(1536 * KIB), pool=(0, 1)),
        segment(0x1_0000, block(64 * KIB), block(64 * KIB, "active_pending_free", 64 * KIB), block(MIB)),
        segment(0, block(MIB), device=1),
    ]
    handles = [
        handle(0, "cudnn", "take", 1),
        handle(60, "cudnn", "create", 2),
        handle(60, "cudnn", "take", 2),
        handle(70, "cudnn", "give_back", 1),
        handle(80, "cudnn", "discard", 2),
        handle(90, "cublas", "destroy", 7),
        handle(95, "cublas", "create", 8, device=1),
    ]
    return write(tmp_path / "snap.pickle", history, segments=segments, handle_events=handles)


# What is drawn.


def test_memory_of_a_snapshot(draw, snapshot):
    picture = draw(snapshot)
    memory, addresses, handles = picture.panels
    assert (picture.title, picture.subtitle) == ("snap.pickle", "a memory snapshot, device 0 of 2, 4 events, 90 µs")
    assert (memory.unit, memory.axis, memory.end) == ("bytes", "time", 90)
    # Of the pools: that with more segments first.
    assert [area.label for area in memory.areas] == ["pool (0, 1): peak 0.977 KiB", "default pool: peak 64.0 KiB"]
    before = (10, 0, 4 * KIB)
    assert rows(memory) == [before, (10, 0, 0), (20, 1000, 0), (30, 1000, 64 * KIB)]
    (reserved,) = memory.lines
    kept = (64 + 64) * KIB + MIB
    assert steps(reserved) == [(10, kept), (20, kept + 2 * MIB)]
    assert reserved.label.startswith("reserved: peak 3.12 MiB, ratio ")
    assert memory.marks == [_picture.Mark(40, "out of memory: 8.00 GiB asked for, 1.00 MiB free")]
    assert ("out of memory", "once") in picture.facts
    assert memory.link == handles.link == "time"
    assert addresses.title == "Address map when the snapshot was written"


def test_address_map_of_a_snapshot(draw, snapshot):
    found = draw(snapshot).panels[1]
    assert [(region.start, region.address, region.size) for region in found.regions] == [
        (0, 0x1_0000, 1152 * KIB),
        (1152 * KIB, 0x80_0000, 2 * MIB),
    ]
    assert found.size == 1152 * KIB + 2 * MIB
    assert found.names == [("pool (0, 1)", "sky", True), ("default pool", "orange", True)]
    parts = [(part.start, part.size, part.state, part.colour, part.requested, part.region) for part in found.blocks]
    assert parts == [
        (0, 64 * KIB, "free", 1, 0, 0),
        (64 * KIB, 64 * KIB, "waiting", 1, 64 * KIB, 0),
        (128 * KIB, MIB, "free", 1, 0, 0),
        (1152 * KIB, 512 * KIB, "live", 0, 1000, 1),
        (1664 * KIB, 1536 * KIB, "free", 0, 0, 1),
    ]
    assert found.stacks[found.blocks[3].stack] == ("forward  /src/model.py:12", "<module>  /src/train.py:88")
    assert found.stacks[found.blocks[0].stack] == ()
    assert found.note == "576 KiB of 3.12 MiB in use, in 2 blocks of 2 segments."


def test_handles_of_a_snapshot(draw, snapshot):
    chart = draw(snapshot).panels[2]
    assert (chart.title, chart.unit, chart.end) == ("Handles over time", "handles", 90)
    lines = {line.label: steps(line) for line in chart.lines}
    assert list(lines) == [
        "cublas created: peak 1",
        "cublas in use: peak 0",
        "cudnn created: peak 2",
        "cudnn in use: peak 2",
    ]
    # Handle 1 was there before it was taken, handle 7 until it was destroyed.
    assert lines["cudnn created: peak 2"] == [(0, 1), (0, 1), (60, 2), (60, 2), (70, 2), (80, 1)]
    assert lines["cudnn in use: peak 2"] == [(0, 0), (0, 1), (60, 1), (60, 2), (70, 1), (80, 0)]
    assert lines["cublas created: peak 1"] == [(0, 1), (90, 0)]


def test_another_device(draw, snapshot):
    picture = draw(snapshot, device=1)
    assert picture.subtitle == "a memory snapshot, device 1 of 2"
    assert [panel.title for panel in picture.panels] == [
        "Address map when the snapshot was written",
        "Handles over time",
    ]
    assert picture.panels[0].size == MIB
    assert [line.label for line in picture.panels[1].lines] == ["cublas created: peak 1", "cublas in use: peak 0"]
    with pytest.raises(_trace.TraceError, match=r"snap\.pickle: nothing of device 2 in it, only of 0, 1$"):
        draw(snapshot, device=2)


def test_address_map_of_any_moment(draw, snapshot):
    found = draw(snapshot, moment="peak").panels[1]
    assert found.title == "Address map at the peak, 30 µs"
    live = [part for part in found.blocks if part.state == "live"]
    address = [found.regions[part.region].address + part.start - found.regions[part.region].start for part in live]
    assert list(zip(address, [part.size for part in live], strict=True)) == [(0x2_0000, 64 * KIB), (0x80_0000, 1000)]
    # The block from before is free by then, and so is the gap behind it.
    assert [(part.start, part.size, part.state) for part in found.blocks[:2]] == [
        (0, 64 * KIB, "free"),
        (64 * KIB, 64 * KIB, "live"),
    ]
    assert "free then, used at another time" in found.free_label
    found = draw(snapshot, moment="0.000012").panels[1]
    assert found.title == "Address map, 10 µs"
    assert not [part for part in found.blocks if part.state == "live"]


def log(path, *lines):
    path.write_text("Thread,Time,Action,Pointer,Size,Stream\n" + "".join(f"1,{line}\n" for line in lines))
    return path


def test_log_is_replayed_to_know_what_is_reserved(draw, tmp_path):
    path = log(tmp_path / "a.csv", f"5,allocate,0x100,{3 * MIB},0", "9,allocate,0x900000,7,8", "20,free,0x100,1,0")
    picture = draw(path)
    memory, addresses = picture.panels
    assert picture.subtitle == "a log of RMM, 3 events, 15 µs"
    assert rows(memory) == [(0, 3 * MIB), (4, 3 * MIB + 7), (15, 7)]
    assert memory.areas[0].label == "live: peak 3.00 MiB"
    (reserved,) = memory.lines
    assert reserved.label.startswith("reserved by gpupool, replayed: peak ")
    assert reserved.x[0] == 0
    assert 3 * MIB <= max(reserved.y) <= 8 * MIB
    assert addresses.title == "Address map at the peak, 4 µs"
    parts = [(part.start, part.size, part.state, part.stream) for part in addresses.blocks]
    assert parts == [(0, 3 * MIB, "live", 0), (3 * MIB, 7, "live", 8)]
    assert [region.address for region in addresses.regions] == [0x100, 0x90_0000]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (["00:00:01:000005", "00:00:01:000105"], [0, 100]),
        (["23:59:59.900000", "00:00:00.1"], [0, 200_000]),
        (["7", "5"], [0, 0]),
        # What holds at the last point holds until the end of the axis.
        (["1"], [0]),
    ],
)
def test_times_of_logs(draw, tmp_path, times, expected):
    path = log(tmp_path / "a.csv", *(f"{time},allocate,{place},512,0" for place, time in enumerate(times)))
    memory = draw(path).panels[0]
    assert (memory.axis, memory.x, memory.end) == ("time", expected, max(1, expected[-1]))


@pytest.mark.parametrize("time", ["", "noon", "1:2:3"])
def test_log_without_times_is_drawn_by_event(draw, tmp_path, time):
    # Pointers that are no numbers have no address map.
    (memory,) = draw(log(tmp_path / "a.csv", f"{time},allocate,a!,512,0", f"{time},free,a!,512,0")).panels
    assert (memory.axis, memory.x, memory.end) == ("event", [0, 1], 1)


def test_recorded_log(draw):
    picture = draw(DATA / "two_streams-1.csv.gz")
    memory, addresses = picture.panels
    assert picture.facts[0] == ("peak live", "4.51 GiB")
    assert max(memory.areas[0].y) == 4843126792
    assert memory.end == 10596761
    assert sum(part.size for part in addresses.blocks if part.state == "live") == 4843126792
    assert sum(part.size for part in addresses.blocks) == addresses.size
    assert all(one.start + one.size == next.start for one, next in pairwise(addresses.blocks))
    # Reserved is never less than live, wherever one of them changes.
    (reserved,) = memory.lines
    held = dict(steps(reserved))
    level = 0
    live = dict(rows(memory))
    for x in sorted({*held, *live}):
        level = held.get(x, level)
        assert live.get(x, 0) <= level or x in held


def test_long_traces_keep_their_peaks_in_a_small_page(draw, tmp_path):
    lines = []
    for place in range(60_000):
        nbytes = 77_777 if place == 40_001 else 1000 + place % 7
        lines += [f"{place * 10},allocate,{place % 50},{nbytes},0", f"{place * 10 + 1},free,{place % 50},{nbytes},0"]
    picture = draw(log(tmp_path / "long.csv", *lines))
    memory = picture.panels[0]
    assert len(memory.x) < 25_000
    assert (400_010, 77_777) in rows(memory)
    assert re.fullmatch(r"Drawn from [\d,]+ of 120,000 events; no peak is lost\.", memory.note)
    output = tmp_path / "long.html"
    _output.write(str(output), picture)
    assert len(json.dumps(page(output))) < 1_000_000
    # Of that the library is the larger part.
    assert output.stat().st_size < 2_000_000


def test_many_pools_share_the_last_colour(draw, tmp_path):
    history = [entry("alloc", number, (20 - number) * KIB, pool_id=(0, number)) for number in range(1, 10)]
    memory = draw(write(tmp_path / "s", history)).panels[0]
    assert [area.colour for area in memory.areas][-2:] == ["vermillion", "grey"]
    assert [area.label.split(":")[0] for area in memory.areas][::6] == ["pool (0, 1)", "3 other pools"]
    assert memory.areas[-1].y[-1] == (13 + 12 + 11) * KIB


def test_blocks_too_small_to_be_seen_are_drawn_together(draw, tmp_path):
    blocks = [
        block(512 if number % 2 else 1024, "active_allocated" if number % 3 == 0 else "inactive", 500)
        for number in range(90_000)
    ]
    blocks.append(block(64 * MIB, "active_allocated", 64 * MIB))
    (found,) = draw(write(tmp_path / "s", segments=[segment(0, *blocks)])).panels
    assert len(found.blocks) < 25_000
    assert sum(part.size for part in found.blocks) == found.size
    assert sum(part.count for part in found.blocks) == len(blocks)
    large = found.blocks[-1]
    assert (large.size, large.state, large.count) == (64 * MIB, "live", 1)
    live = sum(part.live if part.count > 1 else part.size * (part.state == "live") for part in found.blocks)
    assert live == sum(part["size"] for part in blocks if part["state"] != "inactive")
    assert found.note.endswith("Blocks too small to be seen are drawn together.")


def test_sampling_keeps_extremes_and_ends():
    series = [array("q", [(place * 7919) % 1000 for place in range(10_000)])]
    series[0][1234] = 5000
    series[0][8000] = -1
    # Neither the least nor the most of its part.
    series[0][9999] = 200
    places = _sampling.kept(series, 900)
    assert {0, 1234, 8000, 9999} <= set(places)
    assert 600 < len(places) <= 910
    assert _sampling.kept(series, 10_000) == list(range(10_000))
    assert _sampling.kept([array("q")], 10) == []


def test_snapshot_in_which_nothing_was_allocated(draw, tmp_path):
    path = write(tmp_path / "s", [entry("snapshot", 0, 0)], segments=[segment(0, block(MIB))])
    (panel,) = draw(path).panels
    assert isinstance(panel, _picture.AddressMap)
    with pytest.raises(_trace.TraceError, match="nothing to replay"):
        _trace.read(path)


@pytest.mark.parametrize("more", [{}, {"segments": None}])
def test_empty_snapshot(draw, tmp_path, more):
    with pytest.raises(_trace.TraceError, match="s: an empty snapshot: no memory, no trace and no handles in it"):
        draw(write(tmp_path / "s", [], **more))


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"segments": [{"device": 0}]}, r"segments\[0\]: no 'address'"),
        ({"segments": [segment(0, block(-5))]}, r"segments\[0\]: total_size -5"),
        ({"segments": [segment(0, {"size": 4})]}, r"segments\[0\]: no 'state'"),
        ({"handle_events": [{"time_us": 1}]}, r"handle_events\[0\]: no 'library'"),
    ],
)
def test_damaged_snapshot(draw, tmp_path, more, place):
    with pytest.raises(_trace.TraceError, match=f"s: not a PyTorch memory snapshot, or a damaged one: {place}"):
        draw(write(tmp_path / "s", **more))


def test_pools_that_old_snapshots_do_not_tell_are_those_of_the_segments(draw, tmp_path):
    history = [entry("alloc", 16, 5), entry("alloc", 5 * MIB, 7), entry("alloc", 1 << 40, 1)]
    segments = [segment(0, block(MIB)), segment(5 * MIB, block(MIB), pool=(0, 3))]
    labels = [
        area.label.split(":")[0] for area in draw(write(tmp_path / "s", history, segments=segments)).panels[0].areas
    ]
    assert sorted(labels) == ["default pool", "pool (0, 3)", "pool unknown"]


# Pages and figures.


def test_page_stands_alone(draw, snapshot, tmp_path):
    output = tmp_path / "out.html"
    _output.write(str(output), draw(snapshot))
    text = output.read_text()
    assert not re.search(r'<[^>]*(src|href)\s*=\s*"(?!data:)', text.split("<body>")[0])
    assert "default-src 'none'" in text
    assert "unsafe-eval" not in text
    memory, addresses, handles = page(output)["vconcat"]
    assert [panel["title"]["text"] for panel in (memory, addresses, handles)] == [
        "Memory over time",
        "Address map when the snapshot was written",
        "Handles over time",
    ]
    # In the units of the axes.
    assert lines_of(memory) == {"reserved: peak 3.12 MiB, ratio 49.249": [(10, 1.125), (20, 3.125), (90, 3.125)]}
    (blocks,) = layers(addresses, "rect")
    assert rows_of(blocks)[-2] | {"left": 0, "right": 0, "row": 0} == {
        "row": 0,
        "left": 0,
        "right": 0,
        "pool": "free, cached by the allocator",
        "size": "1.50 MiB",
        "address": "0x880000, in a large segment of 2.00 MiB",
        "requested": "",
        "stream": "0x0",
        "stack": 0,
    }
    # The charts have one axis, and zoom together.
    assert [zoom["views"] for zoom in page(output)["params"]] == [["panel0", "panel2"], ["panel1"]]


def test_names_cannot_break_out_of_the_page(draw, tmp_path):
    name = "</script><script>alert(1)</script>"
    frames = [{"filename": "</script><!--", "line": 1, "name": name}]
    segments = [segment(0, block(MIB, "active_allocated", 5, frames=frames))]
    path = write(tmp_path / "x<b>&.pickle", segments=segments)
    output = tmp_path / "out.html"
    _output.write(str(output), draw(path))
    text = output.read_text()
    assert "<title>x&lt;b&gt;&amp;.pickle - gpupool</title>" in text
    assert text.count("</script>") == 2
    (texts,) = [
        each["from"]["data"]["values"] for each in layers(page(output)["vconcat"][0], "rect")[0]["transform"][2:]
    ]
    assert texts[1]["text"] == f"{name}  </script><!--:1"


def legend(panel, channel):
    """Return the labels that a panel's legend of colours or lines has."""
    channels = [layer["encoding"][channel] for layer in panel["layer"] if channel in layer["encoding"]]
    (found,) = [each["scale"]["domain"] for each in channels if "scale" in each]
    return found


def test_what_is_told_of_a_picture(draw, snapshot):
    memory, addresses, handles = _spec.of(draw(snapshot), _spec.Use.IMAGE)["vconcat"]
    area = layers(memory, "area")[0]["encoding"]
    assert (area["x"]["axis"]["title"], area["y"]["axis"]["title"]) == ("time (µs)", "MiB")
    assert legend(memory, "fill") == ["pool (0, 1): peak 0.977 KiB", "default pool: peak 64.0 KiB"]
    assert legend(memory, "stroke")[1:] == ["out of memory"]
    ((mark,),) = [layer["data"]["values"] for layer in layers(memory, "rule")]
    assert (mark["x"], mark["told"]) == (40, "out of memory: 8.00 GiB asked for, 1.00 MiB free")
    assert layers(addresses, "rect")[0]["encoding"]["y"]["axis"]["title"] == "MiB"
    assert legend(addresses, "fill") == [
        "pool (0, 1)",
        "default pool",
        "freed, awaiting other streams",
        "free, cached by the allocator",
    ]
    assert legend(addresses, "stroke") == ["a segment begins"]
    assert layers(handles, "line")[0]["encoding"]["y"]["axis"]["title"] == "handles"


def test_an_area_lies_on_those_below_it(draw, snapshot):
    memory = _spec.of(draw(snapshot), _spec.Use.PAGE)["vconcat"][0]
    last = rows_of(memory)[-1]
    assert (last["top0"], last["top1"]) == (round(1000 / MIB, 6), round((1000 + 64 * KIB) / MIB, 6))
    (over,) = layers(memory, "rect")
    assert [each["calculate"] for each in over["transform"]] == ["datum.top0", "datum.top1 - datum.top0"]


def test_few_numbers_keep_the_peaks_and_what_holds_for_long(draw, tmp_path):
    lines = ["1,allocate,999,5000,0"]
    # After a tenth of the time nothing happens for half of it, and then most of what does.
    for place in range(6000):
        time = 10 + place if place < 1000 else 50_000 + 10 * place
        nbytes = 77_777 if place == 4001 else 1000 + place % 7
        lines += [f"{time},allocate,{place % 50},{nbytes},0", f"{time + 1},free,{place % 50},{nbytes},0"]
    picture = draw(log(tmp_path / "long.csv", *lines))
    memory = _thin.thin(picture).panels[0]
    assert len(memory.x) < 1300 < len(picture.panels[0].x)
    assert (90_009, 82_777) in rows(memory)
    assert max(memory.lines[0].y) == max(picture.panels[0].lines[0].y)
    held = [y for x, y in rows(memory) if x < 30_000]
    assert held[-1] == 5000
    assert memory.note == "Drawn from fewer numbers than there are; no peak is lost."


@pytest.mark.parametrize("nbytes", [1, 5 << 20, (24 << 20) + 1, 18_008_818_688])
def test_rows_of_an_address_map_begin_at_round_addresses(nbytes):
    per_row = _picture.row_size(nbytes)
    assert per_row.bit_count() == 1
    assert 1 <= -(-nbytes // per_row) <= _picture.ROWS
    found = _picture.AddressMap("", nbytes, [("live", "sky", True)], [], [], [()], "", "", "")
    place = layers(_spec.of(_picture.Picture("", "", [], [found]), _spec.Use.IMAGE)["vconcat"][0], "rect")[0][
        "encoding"
    ]
    across = place["x"]["axis"]["values"]
    assert across == [step * across[1] for step in range(9)]
    assert place["y"]["axis"]["values"] == [*range(0, -(-nbytes // per_row) + 1, 4)]
    multiple, unit = map(int, re.findall(r"\d+", place["y"]["axis"]["labelExpr"]))
    assert (4 * multiple) % unit == 0


# The command.


def test_default_output(snapshot, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["plot", snapshot]) == 0
    assert capsys.readouterr().out == ("device 0, which has most; --device 1 draws another\nwrote snap.html\n")
    assert page("snap.html")["title"]["text"] == "snap.pickle"
    # A page of ours may be written again, a stranger's not.
    assert main(["plot", snapshot, "--device", "0"]) == 0
    assert capsys.readouterr().out == "wrote snap.html\n"
    Path("snap.html").write_text("my notes")
    assert main(["plot", snapshot]) == 1
    assert capsys.readouterr().err == "gpupool: snap.html is there already, and not of gpupool; name another with -o\n"
    assert Path("snap.html").read_text() == "my notes"


def test_all_forms_of_one_command(snapshot, tmp_path, capsys):
    outputs = [tmp_path / "out.html", tmp_path / "out.PNG", tmp_path / "out.svg"]
    assert main(["plot", snapshot, "--device", "0", *(word for path in outputs for word in ("-o", str(path)))]) == 0
    assert capsys.readouterr().out == "".join(f"wrote {path}\n" for path in outputs)
    assert page(outputs[0])["title"]["text"] == "snap.pickle"
    assert outputs[1].read_bytes().startswith(b"\x89PNG")
    assert outputs[2].read_text().startswith("<svg ")
    assert outputs[1].stat().st_mode & 0o400
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".gpupool")] == []


def test_without_the_library_it_says_which_command_brings_it(snapshot, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_output.importlib.util, "find_spec", lambda name: None)
    for output in ("out.html", "out.png", "out.svg"):
        assert main(["plot", snapshot, "-o", str(tmp_path / output)]) == 1
        error = "gpupool: pictures need vl-convert, which is missing: pip install 'gpupool[plot]'\n"
        assert capsys.readouterr().err == error


def test_a_renderer_that_ends_says_so(snapshot, tmp_path):
    # It has room for gpupool, and none for an engine of JavaScript.
    done = start_program("command_line/little_memory.py", 300, "plot", snapshot, "-o", tmp_path / "out.png")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("gpupool: vl-convert, which renders pictures, ended with ")
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("out.pdf", "out.pdf: a picture is a .html, .png or .svg file; name it so"),
        ("out", "out: a picture is a .html, .png or .svg file; name it so"),
        ("nowhere/out.html", "cannot be written: there is no folder {folder}/nowhere; make it first"),
        ("folder.html", "folder.html: cannot be written: Is a directory\n"),
    ],
)
def test_output_that_cannot_be_written(snapshot, tmp_path, capsys, output, message):
    (tmp_path / "folder.html").mkdir()
    assert main(["plot", snapshot, "-o", str(tmp_path / output)]) == 1
    assert message.format(folder=tmp_path) in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.html", "snap.pickle"]


@pytest.mark.parametrize("moment", ["noon", "-1", "inf", "nan", "1e305", "1e13", "9" * 400])
def test_wrong_moment(snapshot, capsys, moment):
    with pytest.raises(SystemExit, match="2"):
        main(["plot", snapshot, "--at", moment])
    assert f"'{moment}' is neither end nor peak nor a number of seconds" in capsys.readouterr().err


def test_moments_that_the_file_does_not_have(tmp_path, capsys):
    path = write(tmp_path / "s", segments=[segment(0, block(MIB))])
    assert main(["plot", path, "--at", "peak", "-o", str(tmp_path / "x.html")]) == 1
    assert capsys.readouterr().err == "gpupool: s: a snapshot without a trace has no moment but its end\n"
    path = log(tmp_path / "a.csv", "never,allocate,16,512,0")
    assert main(["plot", str(path), "--at", "1", "-o", str(tmp_path / "x.html")]) == 1
    assert capsys.readouterr().err == "gpupool: a.csv: the file has no times; --at takes peak or end\n"


def test_log_has_no_devices(tmp_path, capsys):
    path = log(tmp_path / "a.csv", "1,allocate,16,512,0")
    assert main(["plot", str(path), "--device", "0", "-o", str(tmp_path / "x.html")]) == 1
    assert capsys.readouterr().err.endswith("a.csv: a log does not name devices; leave --device out\n")


def test_own_snapshot(tmp_path):
    run_program("command_line/plot_of_its_own_snapshot.py", tmp_path / "own.pickle", tmp_path / "o.html")
    (found,) = page(tmp_path / "o.html")["vconcat"]
    assert sorted(legend(found, "fill")[:2]) == ["default pool", "pool (0, 1)"]
    # A block has a part in each row.
    live = {row["address"]: row["size"] for row in rows_of(layers(found, "rect")[0]) if "pool" in row["pool"]}
    assert sorted(live.values()) == ["1.00 MiB"] * 3 + ["5.00 MiB"]


def test_nothing_is_imported_for_a_page(snapshot, tmp_path):
    run_program("command_line/plot_imports_little.py", snapshot, tmp_path / "x.html")


def test_a_segment_without_blocks_is_free(draw, tmp_path):
    (panel,) = draw(write(tmp_path / "s", segments=[segment(MIB, total_size=4 * MIB)])).panels
    assert [(block.size, block.state) for block in panel.blocks] == [(4 * MIB, "free")]


def test_segments_at_one_address_are_no_obstacle(draw, tmp_path):
    # A snapshot may be damaged in ways that a picture need not care about.
    twins = [segment(MIB, block(MIB), segment_pool_id=pool) for pool in (None, (0, 1))]
    assert draw(write(tmp_path / "s", segments=twins)).panels[0].size == 2 * MIB
