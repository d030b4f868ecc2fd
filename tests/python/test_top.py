"""``gpupool top``: what it finds, what it shows of that, and the live table in a terminal of its own."""

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from types import SimpleNamespace

import gpupool
import pyte
import pytest
import textual
from forks import Machine
from gpupool import _native
from gpupool.__main__ import main
from gpupool._cli.top import columns, command
from gpupool._cli.top.nvml import Nvml
from gpupool._cli.top.screen import LiveTable
from gpupool._cli.top.snapshot import Device, Holder, Snapshot, Watch
from gpupool._cli.top.table import as_text
from gpupool._cli.top.view import View, device_line, plain, rows
from processes import environment_with, succeeded
from rich.cells import cell_len
from running import PROGRAMS, run_program, start_command
from waiting import LONG

MIB, GIB = 1 << 20, 1 << 30


def neighbour(pid=1, name="one", device=0, reserved=0, **more):
    """Return what stands for a `gpupool.typing.Neighbour`."""
    told = dict.fromkeys(
        (f"{name}_bytes" for name in ("live", "free", "asleep", "discardable", "offered", "claimed")), 0
    )
    told |= {"guarantee": 0, "most": None, "priority": 0, "system_limit": None, "pools": None, "holder_bytes": None}
    told |= {"holders": None}
    told |= {"pid": pid, "name": name, "device": device, "reserved_bytes": reserved}
    return SimpleNamespace(**told | more)


@pytest.fixture
def tell(monkeypatch):
    """Let processes be neighbours that are made up."""

    def tell(*neighbours):
        def on_device(device, pools):
            found = [each for each in neighbours if each.device == device]
            return (
                found if pools else [SimpleNamespace(**vars(each) | {"pools": None, "holders": None}) for each in found]
            )

        monkeypatch.setattr(gpupool, "neighbours", on_device)

    tell()
    return tell


@pytest.fixture
def driver(monkeypatch):
    """Let the driver tell of devices what the test says, by their ordinals."""

    def driver(**infos):
        monkeypatch.setattr(_native, "device_info", lambda ordinal: infos[f"device_{ordinal}"])

    return driver


def info(total=16 * GIB, free=None, name="GPU", uuid="GPU-1"):
    return {"name": name, "uuid": uuid, "total_bytes": total, "free_bytes": free}


def snapshot(*processes, devices=None, **more):
    """Return a snapshot of one device with these processes, or of these devices."""
    told = {"name": "GPU", "total_bytes": 16 * GIB, "used_bytes": 4 * GIB, "free_bytes": 12 * GIB, "others_bytes": GIB}
    one = Device(device=0, processes=processes, **told | more)
    return Snapshot(time=0.0, version="1.2", runtime="cuda", devices=tuple(devices or (one,)))


# What is found.


def test_what_has_no_gpupool_is_what_the_driver_counts_beyond_the_neighbours(tell, driver):
    tell(neighbour(1, reserved=2 * GIB), neighbour(2, reserved=3 * GIB), neighbour(3, device=1, reserved=GIB))
    driver(device_0=info(free=10 * GIB), device_1=info(free=16 * GIB))
    first, second = Watch().look().devices
    assert (first.used_bytes, first.free_bytes, first.others_bytes) == (6 * GIB, 10 * GIB, GIB)
    assert [process.pid for process in first.processes] == [1, 2]
    # Nothing is less than nothing, where processes have grown since they told.
    assert (second.used_bytes, second.others_bytes) == (0, 0)


def test_what_a_process_tells_of_its_libraries_is_no_others(tell, driver):
    tell(neighbour(1, reserved=2 * GIB, holder_bytes=GIB), neighbour(2, reserved=3 * GIB))
    driver(device_0=info(free=9 * GIB), device_1=info(free=16 * GIB))
    device = Watch().look().devices[0]
    assert (device.used_bytes, device.others_bytes) == (7 * GIB, GIB)


def test_memory_that_the_driver_does_not_count_is_unknown(tell, driver):
    tell(neighbour(reserved=GIB))
    driver(device_0=info(), device_1=info())
    device = Watch().look().devices[0]
    assert (device.total_bytes, device.used_bytes, device.others_bytes) == (16 * GIB, None, None)
    text = as_text(Watch().look(), View(), None)
    assert "0: 16.0 GiB, the driver does not count what is used, GPU" in text
    assert "others" not in text


def test_a_device_that_fails_is_a_row_that_says_so(tell, monkeypatch):
    def fail(ordinal):
        raise gpupool.LibraryError(f"device {ordinal}: lost\nfor good")

    tell(neighbour())
    monkeypatch.setattr(_native, "device_info", fail)
    lines = as_text(Watch().look(), View(), None).splitlines()
    assert r"0: device 0: lost\nfor good" in lines
    assert any(line.startswith("      1 one") for line in lines)


def test_who_only_watches_is_no_row(tmp_path):
    done = start_command("top", "--once", "--json", GPUPOOL_NEIGHBOURS=str(tmp_path))
    assert {len(device["processes"]) for device in json.loads(succeeded(done))["devices"]} == {0}


def test_simulated_devices_are_counted_by_their_driver(tell):
    before = Watch().look().devices[0].used_bytes
    with gpupool.MemPool(reserve=64 * MIB):
        assert Watch().look().devices[0].used_bytes >= before + 64 * MIB


def test_no_context_is_made_on_any_device(tmp_path):
    lines = Machine("cuda", tmp_path).run("command_line/top_on_a_driver.py").splitlines()
    # This driver counts what is free in a context alone, and NVML knows nothing of its devices.
    assert lines[2] == "0: 1.00 GiB, the driver does not count what is used, double"


@pytest.mark.parametrize(("device", "others"), [(2, "0 to 1"), (-1, "0 to 1")])
def test_a_device_that_is_not_here(tell, capsys, device, others):
    assert main(["top", "--once", "--device", str(device)]) == 1
    assert capsys.readouterr() == ("", f"gpupool: there is no device {device} here, but {others}\n")


def test_a_runtime_without_devices_says_so(tell, capsys, monkeypatch):
    monkeypatch.setattr(gpupool, "device_count", lambda: 0)
    assert main(["top"]) == 1
    assert capsys.readouterr() == ("", "gpupool: runtime host has no device to watch here\n")


# NVML, whose library is made up.


class Library:
    """What stands for NVML's library: it knows one device."""

    def __init__(self, **statuses):
        self.statuses = statuses

    def nvmlInit_v2(self):
        return self.statuses.get("init", 0)

    def nvmlDeviceGetHandleByUUID(self, uuid, device):
        device._obj.value = 0x77
        return 0 if uuid == b"GPU-1" else 6

    def nvmlDeviceGetMemoryInfo_v2(self, device, memory):
        assert device.value == 0x77
        told = memory._obj
        # The struct has padding after its first field, and the version has its size and number.
        assert told.version == 0x2000028
        # After the version total, reserved, free and used.
        ctypes.memmove(ctypes.byref(told, 8), struct.pack("QQQQ", 100, 10, 60, 30), 32)
        return self.statuses.get("memory", 0)


@pytest.fixture
def nvml(monkeypatch):
    """Let a library be NVML's, or an error be what opening it raises."""

    def nvml(library):
        def load(name):
            assert name == "libnvidia-ml.so.1"
            if isinstance(library, OSError):
                raise library
            return library

        monkeypatch.setattr(ctypes, "CDLL", load)

    return nvml


def test_nvml_counts_where_there_is_no_context(nvml, tell, driver, monkeypatch):
    nvml(Library())
    monkeypatch.setattr(gpupool, "runtime", lambda: "cuda")
    tell(neighbour(reserved=12))
    driver(device_0=info(), device_1=info(free=4 * GIB))
    first, second = Watch().look().devices
    assert (first.total_bytes, first.used_bytes, first.free_bytes, first.others_bytes) == (90, 30, 60, 18)
    # The driver itself, where it can.
    assert second.free_bytes == 4 * GIB
    assert Nvml().memory("GPU-2") is None


@pytest.mark.parametrize(
    "library",
    [OSError("none"), Library(init=9), Library(memory=3), object(), SimpleNamespace(nvmlInit_v2=lambda: 0)],
    ids=["no library", "no driver", "no memory of its own", "another library", "an old one"],
)
def test_nvml_that_does_not_tell(nvml, library):
    nvml(library)
    assert Nvml().memory("GPU-1") is None


# The table.


def test_the_table_has_all_columns_where_there_is_room():
    process = Holder(
        name="trainer",
        pid=1234,
        reserved_bytes=5 * GIB,
        live_bytes=4 * GIB,
        free_bytes=GIB,
        asleep_bytes=3 * GIB,
        holder_bytes=1536 * MIB,
        discardable_bytes=MIB,
        offered_bytes=2 * MIB,
        claimed_bytes=512 * MIB,
        guarantee=2 * GIB,
        most=6 * GIB,
        priority=7,
        system_limit=8 * GIB,
    )
    title, *lines = as_text(snapshot(process), View(), None).splitlines()
    assert re.fullmatch(r"gpupool 1\.2, cuda, \d\d:\d\d:\d\d, by reserved", title)
    heads = "    PID NAME                                     RESERVED  LIVE  FREE ASLEEP  LIBS DISCARD OFFERED CLAIMED"
    row = "   1234 trainer                                     5.00G 4.00G 1.00G  3.00G 1.50G   1.00M   2.00M    512M"
    assert lines == [
        f"{heads} GUARANTEE  MOST LIMIT PRIORITY",
        "0: 4.00 GiB of 16.0 GiB used [#####...............] 12.0 GiB free, 512 MiB claimed, GPU",
        f"{row}     2.00G 6.00G 8.00G        7",
        "        others (driver's count)                     1.00G",
    ]
    assert plain(snapshot(process), View()).splitlines()[1:] == lines


def test_without_neighbours_it_says_how_to_become_one():
    lines = as_text(snapshot(), View(), None).splitlines()
    assert lines[-2].split() == ["others", "(driver's", "count)", "1.00G"]
    assert "gpupool.set_neighbour()" in lines[-1]


@pytest.mark.parametrize("room", range(1, 140))
def test_no_line_is_wider_than_the_terminal(room):
    process = Holder(name="日本語 and more of it, more than there is room for", pid=1, reserved_bytes=GIB)
    for line in as_text(snapshot(process), View(), room).splitlines():
        assert cell_len(line) <= room, line


def test_narrow_terminals_lose_the_least_important_columns_first():
    every, lost = {column.key for column in columns.COLUMNS}, []
    for room in range(140, 0, -1):
        kept = {column.key for column in columns.shown(room)}
        lost += sorted(every - kept)
        every = kept
    assert lost == [
        "limit",
        "priority",
        "offered",
        "guarantee",
        "discardable",
        "claimed",
        "libraries",
        "most",
        "asleep",
        "free",
        "pid",
        "live",
    ]
    assert every == {"name", "reserved"}
    assert {column.key for column in columns.shown(80)} == {*columns.KEYS} - {
        "limit",
        "priority",
        "offered",
        "guarantee",
    }


@pytest.mark.parametrize(
    ("room", "length"), [(None, 40), (200, 103), (106, 15), (103, 12), (50, 14), (21, 12), (15, 6)]
)
def test_names_get_the_room_that_is_left_and_are_cut_to_it(room, length):
    process = Holder(name="n" * 200, pid=1, reserved_bytes=GIB)
    assert f" {'n' * (length - 1)}… " in f" {as_text(snapshot(process), View(), room)}".replace("\n", " ")


def test_what_takes_two_columns_is_not_cut_in_half():
    process = Holder(name="日本語" * 9, pid=1, reserved_bytes=GIB)
    rows = [as_text(snapshot(process), View(), room).splitlines()[-2] for room in (21, 22)]
    # What is left of it is a space.
    assert [row.split("1")[0].rstrip() for row in rows] == ["日本語日本 …", "日本語日本語…"]
    assert [cell_len(row) for row in rows] == [21, 22]


def test_short_lines_where_there_is_little_room():
    process = Holder(name="a", pid=1, reserved_bytes=GIB)
    lines = as_text(snapshot(process, name="A long name"), View(), 30).splitlines()[2:]
    assert lines == ["0: 4.00 GiB of 16.0 GiB used …", "a                  1.00G     -", "others (driver…    1.00G"]
    lines = as_text(snapshot(process, name="A long name"), View(), 70).splitlines()[2:]
    assert lines[0] == "0: 4.00 GiB of 16.0 GiB used [#####...............] 12.0 GiB free, A …"


def test_names_cannot_write_into_the_terminal():
    process = Holder(name="\x1b[2Jtrainer\n", pid=1, reserved_bytes=GIB)
    assert r"\x1b[2Jtrainer\n" in as_text(snapshot(process, name="G\aPU"), View(), None)
    assert r", G\x07PU" in as_text(snapshot(process, name="G\aPU"), View(), None)
    assert r"[bold]\x1b" in as_text(snapshot(Holder(name="[bold]\x1b", pid=1)), View(), None)


def test_a_device_that_is_nearly_full_and_a_process_over_its_most_stand_out():
    over = Holder(name="a", pid=1, reserved_bytes=2, most=1)
    within = Holder(name="b", pid=2, reserved_bytes=1, most=1)
    unlimited = Holder(name="c", pid=3, reserved_bytes=1)
    (device,) = snapshot(over, within, unlimited).devices
    assert [kind for kind, _ in rows(device, View())] == ["over", "process", "process", "others"]
    assert device_line(device)[0] == "device"
    assert device_line(snapshot(used_bytes=15 * GIB).devices[0])[0] == "full"


@pytest.mark.parametrize(
    ("key", "is_reversed", "order"),
    [
        ("reserved", False, "bca"),
        ("reserved", True, "cba"),
        ("name", False, "abc"),
        ("name", True, "cba"),
        ("pid", False, "cab"),
        ("priority", False, "bca"),
        # Among equals by number.
        ("live", False, "cab"),
        ("live", True, "cab"),
        # What nobody has.
        ("most", False, "cab"),
    ],
)
def test_order(key, is_reversed, order):
    holders = (
        Holder(name="a", pid=2, reserved_bytes=None, live_bytes=1, priority=-1),
        Holder(name="b", pid=3, reserved_bytes=9, live_bytes=1, priority=5),
        Holder(name="c", pid=1, reserved_bytes=8, live_bytes=1, priority=0),
    )
    assert "".join(each.name for each in columns.ordered(holders, key, is_reversed)) == order


def pool(*pool_id, name=None, **sizes):
    """Return what stands for a `gpupool.typing.NeighbourPool`."""
    return SimpleNamespace(id=pool_id, given_name=name, **sizes)


def test_pools_are_shown_of_processes_that_tell_of_them(tell):
    pools = [pool(0, 1, name="cache", reserved_bytes=GIB), pool(0, 3, live_bytes=MIB), pool(0, 0, free_bytes=MIB)]
    libraries = [("NCCL", 2 * GIB), ("cuBLAS", MIB)]
    tell(neighbour(1, "a", reserved=3, pools=pools, holders=libraries), neighbour(2, "b", reserved=2))
    found = Watch().look(pools=True)
    shown = as_text(found.only(0), View(has_pools=True), 80).splitlines()[3:9]
    assert [line.split()[:4] for line in shown] == [
        ["1", "a", "3", "0"],
        ["cache", "1.00G"],
        ["pool", "(0,", "3)", "1.00M"],
        ["default", "pool", "1.00M"],
        ["NCCL", "2.00G"],
        ["cuBLAS", "1.00M"],
    ]
    assert not re.search("cache|pool [(]|default pool", as_text(found, View(), 80))


def test_pools_are_asked_for_only_if_they_are_to_be_shown(tell, capsys):
    tell(neighbour(1, "a", reserved=3, pools=[pool(0, 3, live_bytes=MIB)]))
    assert Watch().look().devices[0].processes[0].pools is None
    assert main(["top", "--once"]) == 0
    assert "pool (0, 3)" not in capsys.readouterr().out
    assert main(["top", "--once", "--pools"]) == 0
    assert "pool (0, 3)" in capsys.readouterr().out


# Without a terminal.


def test_once_prints_one_table(tell, capsys):
    tell(neighbour(12, "server", device=1, reserved=GIB))
    assert main(["top", "--once", "--sort", "name"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"gpupool {gpupool.__version__}, host (simulated), ")
    assert lines[0].endswith(", by name")
    assert [line.split()[0] for line in lines[1:]] == ["PID", "0:", "others", "1:", "12", "others"]
    assert main(["top", "--once", "--device", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["PID", "1:", "12", "others"]


def test_once_is_as_wide_as_columns_says(tell, capsys, monkeypatch):
    tell(neighbour())
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["top", "--once"]) == 0
    heading = capsys.readouterr().out.splitlines()[1]
    assert heading.split() == ["PID", "NAME", "RESERVED", "LIVE", "FREE", "ASLEEP", "LIBS", "MOST"]


def test_json_of_one_look(tell, capsys):
    pools = [pool(0, 3, reserved_bytes=1, live_bytes=2)]
    tell(neighbour(1, "a", reserved=5, most=9), neighbour(2, "b", reserved=2, pools=pools, holders=[("NCCL", 7)]))
    assert main(["top", "--once", "--json", "--pools", "--device", "0"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["schema"], found["version"], found["runtime"]) == (1, gpupool.__version__, "host")
    (device,) = found["devices"]
    assert (device["device"], device["name"], device["error"]) == (0, "simulated device", None)
    assert device["used_bytes"] + device["free_bytes"] == device["total_bytes"]
    first, second = device["processes"]
    assert first == {
        "pid": 1,
        "name": "a",
        "reserved_bytes": 5,
        "live_bytes": 0,
        "free_bytes": 0,
        "asleep_bytes": 0,
        "holder_bytes": None,
        "discardable_bytes": 0,
        "offered_bytes": 0,
        "claimed_bytes": 0,
        "guarantee": 0,
        "most": 9,
        "priority": 0,
        "system_limit": None,
    }
    (found,) = second["pools"]
    assert (found["name"], found["reserved_bytes"], found["free_bytes"]) == ("pool (0, 3)", 1, None)
    assert "most" not in found
    assert second["libraries"] == [{"name": "NCCL", "holder_bytes": 7}]
    assert main(["top", "--once", "--json", "--device", "0"]) == 0
    assert not any("pools" in each for each in json.loads(capsys.readouterr().out)["devices"][0]["processes"])


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_without_a_terminal_it_prints_until_it_is_interrupted(tell, capsys, monkeypatch, options):
    waited = []

    def wait(seconds):
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", wait)
    assert main(["top", "--interval", "0.5", *options]) == 130
    printed = capsys.readouterr()
    assert (waited, printed.err) == ([0.5] * 3, "")
    if options:
        assert [json.loads(line)["schema"] for line in printed.out.splitlines()] == [1, 1, 1]
    else:
        assert len(re.findall(r"^gpupool .* by reserved$", printed.out, re.MULTILINE)) == 3
        assert "\x1b" not in printed.out


def test_ctrl_c_ends_it_within_a_second_even_just_before_it_sleeps(tell, monkeypatch):
    waited = []

    def wait(seconds):
        waited.append(seconds)
        if len(waited) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", wait)
    assert main(["top", "--json", "--interval", "2.5"]) == 130
    assert waited == [1.0, 1.0, 0.5] * 2


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "3601", "soon"])
def test_intervals_that_are_none(capsys, interval):
    with pytest.raises(SystemExit, match="2"):
        main(["top", f"--interval={interval}"])
    assert "is no number of seconds from 0.1 to 3600" in capsys.readouterr().err


def test_in_a_program_of_its_own():
    lines = run_program("command_line/top.py", "--once").splitlines()
    assert sum("worker-" in line for line in lines) == 40
    found = json.loads(run_program("command_line/top.py", "--once", "--json"))
    assert [len(device["processes"]) for device in found["devices"]] == [40, 1]


def test_without_the_libraries_the_table_is_plain_lines(tell, capsys, monkeypatch):
    tell(neighbour(12, "server", reserved=GIB))
    assert main(["top", "--once", "--device", "0"]) == 0
    shown = capsys.readouterr().out.splitlines()[1:]
    for name in ("rich", "textual"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("gpupool._cli.top.table", "gpupool._cli.top.screen"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert main(["top", "--once", "--device", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == shown


# In a terminal.

PROGRAM = str(PROGRAMS / "command_line" / "top.py")
# As a shell starts a command that Ctrl-C does not end when its terminal goes, or one without keys.
STAYS = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
NO_KEYS = ("sh", "-c", 'exec "$@" < /dev/null', "sh")


class Top:
    """The program in a terminal of its own, and what that shows."""

    def __init__(self, *options, rows=24, columns=110, by=(), terminal="xterm-256color", **variables):
        self.screen, self.raw = pyte.Screen(columns, rows), b""
        self.stream = pyte.ByteStream(self.screen)
        self.master, slave = os.openpty()
        self.resize(rows, columns)
        self.former = termios.tcgetattr(self.master)
        removed = dict.fromkeys(("NO_COLOR", "COLUMNS", "LINES", "COLORTERM"))
        folders = [Path(module.__file__).parents[1] for module in (gpupool, textual)]
        environment = environment_with(folders, TERM=terminal, **removed | variables)
        launcher = [sys.executable, str(PROGRAMS / "command_line" / "in_a_terminal.py"), str(slave)]
        command = [*launcher, *by, sys.executable, PROGRAM, *options]
        self.process = subprocess.Popen(command, env=environment, pass_fds=[slave], stdin=subprocess.DEVNULL)
        os.close(slave)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self.master)

    def resize(self, rows, columns):
        """Give the terminal another size, of which the system tells the program by a signal."""
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys):
        os.write(self.master, keys)

    def until(self, condition, what):
        """Read what the program writes until the lines on the screen are as told."""
        while not condition(self.lines):
            ready, _, _ = select.select([self.master], [], [], LONG)
            assert ready, f"waited in vain until {what}:\n" + "\n".join(self.lines)
            self.feed(os.read(self.master, 1 << 16))

    def until_shown(self, text):
        self.until(lambda lines: any(text in line for line in lines), f"{text!r} is shown")

    @property
    def lines(self):
        """What is shown, without spaces and the scroll bar at the right."""
        return [line.rstrip(" ▁▂▃▄▅▆▇█") for line in self.screen.display]

    def feed(self, data):
        self.raw += data
        self.stream.feed(data)

    def end(self):
        """Read until the program has ended, and return its exit code; the terminal must be as it was."""
        # The terminal ends with the last process that has it.
        with contextlib.suppress(OSError):
            while some := os.read(self.master, 1 << 16):
                self.feed(some)
        assert b"Traceback" not in self.raw
        assert termios.tcgetattr(self.master) == self.former
        return self.process.wait()


def kinds(lines):
    """Return the first words of what is between the heading and the foot."""
    return [line.split()[0] for line in lines[2:-1] if line]


def test_the_live_table_and_its_keys():
    # It looks once, unless a key asks for more.
    with Top("--interval", "300", rows=50) as top:
        every = ["0:", *map(str, range(101, 141)), "others", "1:", "7", "others"]
        top.until(lambda lines: kinds(lines) == every, "all devices are shown")
        title = re.compile(rf"gpupool {re.escape(gpupool.__version__)}, host \(simulated\), .*, every 300 s")
        top.until(lambda lines: title.fullmatch(lines[0]) is not None, "the title is shown")
        top.until(lambda lines: lines[1].split()[:3] == ["PID", "NAME", "RESERVED"], "the heading is shown")
        top.press(b"r")
        top.until_shown(", by reserved, reversed")
        top.until(lambda lines: kinds(lines)[1:41] == [*map(str, range(140, 100, -1))], "the smallest come first")
        top.press(b"S")
        top.until_shown(", by name")
        top.press(b"S")
        top.until_shown(", by pid")
        top.press(b"sssss")
        top.until_shown(", by asleep")
        # The pools are asked for by another look.
        top.until_shown("look-1 ")
        top.press(b"p")
        top.until_shown("pool (0, 3)")
        top.until_shown("look-2 ")
        top.press(b"p")
        top.until(lambda lines: not any("pool (0" in line for line in lines), "the pools are gone")
        top.press(b"d")
        top.until(lambda lines: kinds(lines)[-1] == "others" and "7" not in kinds(lines), "device 0 is alone")
        top.press(b"d")
        top.until(lambda lines: kinds(lines) == ["1:", "7", "others"], "device 1 is alone")
        top.press(b"d")
        top.until(lambda lines: len(kinds(lines)) == 45, "all devices are shown")
        top.press(b"+")
        top.until_shown(", every 3600 s")
        top.press(b"--")
        top.until_shown(", every 60 s")
        top.press(b"h")
        top.until_shown("quit, as does Ctrl-C")
        top.until(lambda lines: not any("worker" in line for line in lines), "the help is alone")
        top.press(b"x")
        top.until_shown("worker-1 ")
        top.until_shown("look-2 ")
        top.press(b" ")
        top.until_shown("look-3 ")
        top.press(b"q")
        assert top.end() == 0


def test_keys_choose_among_what_there_is():
    async def press(view, *keys):
        table = LiveTable(lambda pools: snapshot(), view)
        async with table.run_test() as pilot:
            await pilot.press(*keys)
            return table._view

    def after(view, *keys):
        return asyncio.run(press(view, *keys))

    assert after(View(sort="priority"), "s").sort == "pid"
    assert after(View(sort="pid"), "S").sort == "priority"
    # Another column begins in its own order.
    assert not after(View(), "r", "s").is_reversed
    assert (after(View(), *["plus"] * 20).interval, after(View(), *["minus"] * 20).interval) == (3600.0, 0.1)
    assert after(View(interval=0.7), "minus").interval == 0.5
    # It leaves the help, and does nothing else.
    assert after(View(), "question_mark", "s") == after(View(), "x", "k") == View()


def test_the_live_table_looks_by_itself():
    with Top("--interval", "0.1", "--device", "1") as top:
        top.until_shown("look-4 ")
        top.press(b"q")
        assert top.end() == 0


def test_the_live_table_scrolls_and_its_heading_stays():
    with Top("--interval", "3600", rows=10) as top:
        first = ["0:", "101", "102", "103", "104", "105", "106"]
        top.until(lambda lines: kinds(lines) == first, "the beginning is shown")
        # The key with the arrow.
        top.press(b"\x1b[B")
        top.until(lambda lines: kinds(lines)[0] == "101" and kinds(lines)[-1] == "107", "it has scrolled by a line")
        top.press(b"j" * 100)
        top.until(lambda lines: kinds(lines)[-3:] == ["1:", "7", "others"], "the end is shown")
        assert len(kinds(top.lines)) == 7
        assert top.lines[1].split()[0] == "PID"
        top.press(b"k")
        top.until(lambda lines: kinds(lines)[-2:] == ["1:", "7"], "it has scrolled back by a line")


def test_the_live_table_follows_the_size_of_the_terminal():
    with Top("--interval", "3600", rows=24, columns=110) as top:
        top.until(lambda lines: lines[1].split()[-1:] == ["PRIORITY"], "all columns are shown")
        for rows, columns_, last in (
            (12, 40, "LIVE"),
            (30, 120, "PRIORITY"),
            (5, 21, "RESERVED"),
            (24, 80, "MOST"),
            (25, 75, "MOST"),
        ):
            top.resize(rows, columns_)
            top.until(
                lambda lines, rows=rows, last=last: (
                    (lines[1].split()[-1:], len(kinds(lines))) == ([last], rows - 3)
                    and kinds(lines)[:1] == ["0:"]
                    and lines[-1].startswith(" q quit")
                ),
                f"all {rows} lines are shown, with the columns up to {last}",
            )
        # The help stays, since a size is no key.
        top.press(b"h")
        top.until_shown("quit, as does Ctrl-C")
        top.resize(20, 60)
        top.until(lambda lines: "       all" in lines, "the help fits the new width")
        top.press(b"h")
        top.until_shown("worker-1 ")
        for rows, columns_ in ((1, 1), (2, 200), (1, 80), (24, 80)):
            top.resize(rows, columns_)
        top.until(lambda lines: "MOST" in "".join(lines[1:2]).split(), "the table is whole again")
        top.press(b"q")
        assert top.end() == 0


@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param(lambda top: top.press(b"\x03"), 130, id="Ctrl-C"),
        pytest.param(lambda top: top.process.terminate(), 128 + signal.SIGTERM, id="being ended"),
        # The program's second look fails.
        pytest.param(lambda top: top.press(b" "), 1, id="an error"),
    ],
)
def test_whatever_ends_it_leaves_the_terminal_as_it_was(end, code):
    with Top("--interval", "3600", GPUPOOL_LOOKS="1") as top:
        while b"every 3600 s" not in top.raw:
            top.feed(os.read(top.master, 1 << 16))
        assert termios.tcgetattr(top.master) != top.former
        end(top)
        assert top.end() == code
    assert (b"gpupool: no more looks" in top.raw) == (code == 1)
    # It leaves the other screen, and shows the cursor.
    assert b"\x1b[?1049l" in top.raw
    assert top.raw.rindex(b"\x1b[?25h") > top.raw.rindex(b"\x1b[?25l")


def test_a_terminal_that_goes_ends_it():
    with Top("--interval", "3600", by=STAYS) as top:
        top.until_shown(", every 3600 s")
        os.close(top.master)
        assert top.process.wait(LONG) == -signal.SIGHUP


@pytest.mark.parametrize(
    ("terminal", "variables", "has_colours"),
    [("xterm-256color", {}, True), ("xterm-256color", {"NO_COLOR": "1"}, False)],
)
def test_colours_where_the_terminal_has_them(terminal, variables, has_colours):
    with Top("--interval", "3600", terminal=terminal, **variables) as top:
        top.until_shown("worker-1 ")
    # Red, for processes over their most, and cyan, for devices.
    colours = {colour for codes in re.findall(rb"\x1b\[([\d;]*)m", top.raw) for colour in codes.split(b";")}
    assert [b"31" in colours, b"36" in colours] == [has_colours] * 2


@pytest.mark.parametrize(
    ("terminal", "by", "without"),
    [("dumb", (), None), ("", (), None), ("xterm", NO_KEYS, None), ("xterm", (), "rich textual")],
    ids=["dumb", "none", "no keys", "no libraries"],
)
def test_terminals_without_places_or_keys_get_text(terminal, by, without):
    with Top("--interval", "3600", by=by, terminal=terminal, columns=60, WITHOUT=without) as top:
        while top.raw.count(b"others") < 2:
            top.feed(os.read(top.master, 1 << 16))
        top.press(b"\x03")
        assert top.end() == 130
    assert b"\x1b" not in top.raw
    assert (b"comes with: pip install 'gpupool[cli]'" in top.raw) == bool(without)
    assert without or max(map(len, top.raw.decode().split("\r\n"))) <= 60
