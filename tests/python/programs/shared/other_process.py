"""Another process that does what it is asked: what programs about shared memory are made of."""

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpupool
from waiting import LONG, wait_until

MIB = 1 << 20


def _serve(connection) -> None:
    kept = {}
    while True:
        try:
            work, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, work(kept, *arguments))
        except gpupool.Error as error:
            answer = (False, (type(error).__name__, str(error)))
        except BaseException:
            answer = (False, ("a fault of the test", traceback.format_exc()))
        connection.send(answer)


# What starts processes where this one is a fork of `fork_server`.
nursery = None


class Forked:
    """A process that the nursery has started, as `multiprocessing` shows its own."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._exitcode: int | None = None

    @property
    def exitcode(self) -> int | None:
        """How the process has ended, if it has."""
        if self._exitcode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._exitcode = os.waitstatus_to_exitcode(status) if ended else None
        return self._exitcode

    def is_alive(self) -> bool:
        """Return whether the process has not ended."""
        return self.exitcode is None

    def kill(self) -> None:
        """Send what ends it."""
        os.kill(self.pid, signal.SIGKILL)

    def join(self, _timeout: float | None = None) -> None:
        """Wait for its end."""
        wait_until(lambda: not self.is_alive(), "the other process has ended")


class OtherProcess:
    """A process that calls functions with a dictionary of its own, which keeps what they put there."""

    def __init__(self) -> None:
        if nursery:
            pid, self._connection = nursery.start(_serve)
            self.process = Forked(pid)
            return
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,))
        self.process.start()
        other.close()

    def begin(self, work: Callable, *arguments: Any) -> None:
        """Ask for work, and do not wait for it."""
        self._connection.send((work, arguments))

    def end(self) -> Any:
        """Return what the work that was begun returned."""
        assert self._connection.poll(LONG), "the other process does not answer"
        is_done, answer = self._connection.recv()
        assert is_done, f"the other process: {answer[0]}: {answer[1]}"
        return answer

    def call(self, work: Callable, *arguments: Any) -> Any:
        """Have work done, and return what it returned."""
        self.begin(work, *arguments)
        return self.end()

    def do(self, function: Callable, *arguments: Any) -> Any:
        """Have a function called that has the same name in every process, and return what it returned."""
        return self.call(do, function, *arguments)

    def put(self, name: str, function: Callable, *arguments: Any) -> None:
        """Have what the function returns kept under a name."""
        self.call(put, name, function, *arguments)

    def of(self, name: str, attribute: str, *arguments: Any) -> Any:
        """Return an attribute of what is kept, or what it returned where it is a method."""
        return self.call(of, name, attribute, *arguments)

    def refused(self, kind: type[gpupool.Error], work: Callable, *arguments: Any) -> str:
        """Have work done that gpupool refuses with this kind of error, and return what it says."""
        self.begin(work, *arguments)
        assert self._connection.poll(LONG), "the other process does not answer"
        is_done, answer = self._connection.recv()
        assert not is_done, f"the other process was not refused: {answer}"
        name, text = answer
        assert name == kind.__name__, text
        return text

    def leave(self) -> None:
        """Have the process end as processes do."""
        self._connection.close()
        self.process.join(LONG)
        assert self.process.exitcode == 0, self.process.exitcode

    def kill(self) -> None:
        """End the process at once."""
        os.kill(self.process.pid, signal.SIGKILL)
        # Not by a join, which would wait for its children as well.
        wait_until(lambda: self.process.exitcode is not None, "the killed process has ended")
        assert self.process.exitcode == -signal.SIGKILL


def do(kept: dict, function: Callable, *arguments: Any) -> Any:
    """Call a function."""
    return function(*arguments)


def put(kept: dict, name: str, function: Callable, *arguments: Any) -> None:
    """Keep what a function returns."""
    kept[name] = function(*arguments)


def of(kept: dict, name: str, attribute: str, *arguments: Any) -> Any:
    """Return an attribute of what is kept, or what it returned where it is a method."""
    value = getattr(kept[name], attribute)
    return value(*arguments) if callable(value) else value


@contextlib.contextmanager
def other_process() -> Iterator[OtherProcess]:
    """Start another process, which is gone at the end."""
    other = OtherProcess()
    try:
        yield other
    finally:
        if other.process.is_alive():
            other.process.kill()
            other.process.join()


@contextlib.contextmanager
def stopped(process: int) -> Iterator[None]:
    """Have a process do nothing meanwhile."""
    os.kill(process, signal.SIGSTOP)
    wait_until(lambda: state(process) == "T", "the process is stopped")
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def state(process: int) -> str:
    """Return a process's state as the system shows it."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def address_of(token: gpupool.typing.ShareToken) -> bytes:
    """Return the name that the owner listens under."""
    return b"\0gpupool-share-" + bytes(token)[36:52].hex().encode()


def attach(kept: dict, token: gpupool.typing.ShareToken, name: str = "buffer", **arguments: Any) -> int:
    """Attach a buffer, keep it, and return its address."""
    kept[name] = gpupool.attach(token, **arguments)
    return kept[name].ptr


def free(kept: dict, name: str = "buffer") -> None:
    """Free what was attached."""
    kept.pop(name).free()


def fill(kept: dict, byte: int, name: str = "buffer") -> None:
    """Fill what was attached, and wait for it."""
    kept[name].fill(byte)
    gpupool.Stream().synchronize()
    bytes(kept[name])


def content(kept: dict, name: str = "buffer") -> set[int]:
    """Return the values of the bytes of what was attached."""
    return values(kept[name])


def wait_until_let_go(other: OtherProcess) -> None:
    """Wait until another process has nothing attached, and until this one, which hears of it later, knows that."""
    wait_until(lambda: other.call(attached_bytes) == 0, "the other process has let go")
    wait_until(lambda: shared_blocks() == [], "this process knows that it is let go")


def read_by(other: OtherProcess, token: gpupool.typing.ShareToken) -> set[int]:
    """Return the values of the bytes that another process finds; it lets go of them again."""
    other.call(attach, token)
    found = other.call(content)
    other.call(free)
    return found


def values(buffer: gpupool.DeviceBuffer) -> set[int]:
    """Return the values of a buffer's bytes, at once where all are the same."""
    found = bytes(buffer)
    return set(found[:1]) if found.count(found[:1]) == len(found) else set(found)


def attached_bytes(kept: dict) -> int:
    """Return how much is attached, for all devices."""
    return sum(gpupool.memory_stats(device).attached_bytes for device in range(gpupool.device_count()))


def sent_bytes() -> int:
    """Return what is still on its way, of what is known by now."""
    gpupool.empty_cache()
    return gpupool.memory_stats().sent_bytes


def shared_blocks() -> list[tuple[int, int, bool, tuple[int, ...]]]:
    """Return the blocks of this process that others have attached."""
    (device,) = gpupool.memory_summary(0).devices
    return [(each.ptr, each.nbytes, each.is_freed, each.processes) for each in device.shared]


def wait_until_free(nbytes: int) -> gpupool.DeviceBuffer:
    """Return a buffer of a device that is full, once there is room."""
    found = []

    def is_free() -> bool:
        with contextlib.suppress(gpupool.OutOfMemory):
            found.append(gpupool.empty(nbytes))
        return bool(found)

    wait_until(is_free, f"{nbytes} bytes are free")
    return found[0]


def is_full(nbytes: int) -> bool:
    """Return whether so many bytes cannot be had now."""
    try:
        gpupool.empty(nbytes).free()
    except gpupool.OutOfMemory:
        return True
    return False


def in_pieces(byte: int = 1, pieces: int = 9) -> gpupool.DeviceBuffer:
    """Return a buffer of several extents, filled with the byte."""
    small = [gpupool.empty(2 * MIB) for _ in range(pieces)]
    for buffer in small:
        buffer.free()
    buffer = gpupool.empty(2 * MIB * pieces)
    buffer.fill(byte)
    return buffer


def open_files() -> int:
    """Return how many descriptors are open, but for that of the listing."""
    return len(os.listdir("/proc/self/fd")) - 1


def logged(name: str, level: int) -> list[str]:
    """Return the list that messages of a logger come to from now on."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger(name).addHandler(handler)
    logging.getLogger(name).setLevel(level)
    return messages


def watched_processes(kept: dict | None = None) -> int:
    """Return how many processes' ends a process would be told of, with each of which it has a connection."""
    return sum("pidfd" in _link_of(number) for number in os.listdir("/proc/self/fd"))


def _link_of(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:
        # That of the listing, or one that was closed meanwhile.
        return ""


def fork_one_that_stays(kept: dict, *, runs_handlers: bool = True) -> int:
    """Fork a child that does nothing, and return its id once it has begun that."""
    reading, writing = os.pipe()
    child = os.fork() if runs_handlers else ctypes.PyDLL(None)._Fork()
    if child == 0:
        os.write(writing, b".")
        # Gone also where the test fails.
        signal.alarm(60)
        signal.pause()
    os.read(reading, 1)
    for file in (reading, writing):
        os.close(file)
    return child
