"""Programs of this folder, run in forks of a process that has imported gpupool; see `programs/shared/fork_server.py`.

What they are asked and what they answer is that of `running`. Whoever looks at the start of an interpreter, or at what
is imported there, takes that.
"""

import atexit
import contextlib
import functools
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import gpupool
import machines
from processes import environment_with
from running import SHARED, Runner

SERVER = SHARED / "fork_server.py"
# What most programs import.
IMPORTED = ("libraries", "errors", "waiting", "subprocess", "json", "tempfile", "multiprocessing.spawn", "logging")
# What the command line imports.
COMMAND = (
    *("gpupool.__main__", "gpupool._cli.main", "gpupool._cli.top.command", "gpupool._report.info", "platform"),
    *(f"gpupool._cli.{name}" for name in ("demo", "info", "plot", "replay", "run")),
)
# What the loader, the interpreter or what is imported reads once.
READ_AT_THE_START = ("LD_", "PYTHON", "GPUPOOL_ENABLE", "NUMBA_", "MALLOC_")
FOLDERS = (SHARED, Path(gpupool.__file__).parents[1])


class Server:
    """A process that runs programs in forks of itself."""

    def __init__(self, flags: tuple[str, ...], modules: tuple[str, ...], start: frozenset) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUPOOL_", "LD_"))}
        environment = {**kept, **dict(start), "PYTHONPATH": environment_with(FOLDERS, PYTHONPATH=None)["PYTHONPATH"]}
        with theirs:
            command = [sys.executable, *flags, str(SERVER), str(theirs.fileno()), *modules]
            self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])

    def close(self) -> None:
        """Have it end."""
        self._socket.close()
        self._process.wait()

    def run(
        self, program: str, arguments: list[str], environment: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a program until it has ended and nobody writes for it any more."""
        message = pickle.dumps((program, arguments, environment, os.getcwd()))
        with self._lock, contextlib.ExitStack() as stack:
            pipes = [os.pipe() for _ in range(2)]
            socket.send_fds(self._socket, [message], [writing for _, writing in pipes])
            for _, writing in pipes:
                os.close(writing)
            texts = [stack.enter_context(open(reading)) for reading, _ in pipes]
            child = self._answer()
            ends = threading.Timer(timeout, os.kill, (child, signal.SIGKILL))
            ends.start()
            said = []
            errors = threading.Thread(target=lambda: said.append(texts[1].read()))
            errors.start()
            output = texts[0].read()
            code = self._answer()
            ends.cancel()
            errors.join()
            return subprocess.CompletedProcess([program, *arguments], code, output, said[0])

    def _answer(self) -> int:
        answer = self._socket.recv(64)
        assert answer, f"{SERVER.name} has ended"
        return int(answer)


_servers: dict[tuple, Server] = {}
# How many are kept, the latest that were used.
KEPT = 12


@atexit.register
def _close() -> None:
    while _servers:
        _servers.popitem()[1].close()


def _server(*what: object) -> Server:
    server = _servers.pop(what, None) or Server(*what)
    _servers[what] = server
    if len(_servers) > KEPT:
        _servers.pop(next(iter(_servers))).close()
    return server


def start(
    program: str | Path,
    *arguments: object,
    flags: tuple[str, ...] = (),
    modules: tuple[str, ...] = (),
    timeout: float = 60,
    **variables: str | None,
) -> subprocess.CompletedProcess[str]:
    """Run a program, or by `-m` a module, with variables added to its environment; None removes one."""
    environment = environment_with(FOLDERS, **variables)
    at_start = {name: value for name, value in environment.items() if name.startswith(READ_AT_THE_START)}
    del at_start["PYTHONPATH"]
    of_command = COMMAND if (program, *arguments[:1]) == ("-m", "gpupool") else ()
    server = _server(flags, (*IMPORTED, *of_command, *modules), frozenset(at_start.items()))
    try:
        return server.run(str(program), list(map(str, arguments)), environment, timeout)
    except BaseException:
        # Its next answers would be those of this program.
        _servers.clear()
        raise


_runner = Runner(start)
start_program, run_program = _runner.start_program, _runner.run_program
start_bare_program, run_bare_program = _runner.start_bare_program, _runner.run_bare_program
start_command, start_bare_command = _runner.start_command, _runner.start_bare_command


@functools.cache
def _driver(platform: str) -> Path:
    folder = tempfile.TemporaryDirectory(prefix="gpupool-driver-")
    atexit.register(folder.cleanup)
    return machines.Machine(platform, Path(folder.name)).driver


class Machine(machines.Machine):
    """A machine whose programs run in forks: what is installed is its own, its driver that of all such machines."""

    # Unless it is built with flags.
    has_own_driver = False

    @property
    def driver(self) -> Path:
        """The file of its driver."""
        return super().driver if self.has_own_driver else _driver(self.platform)

    def build(self, *flags: str) -> None:
        """Build the driver; one with flags is this machine's, whose programs run in new interpreters."""
        if flags:
            self.has_own_driver = True
            super().build(*flags)

    def start(self, name: str, *arguments: object, **variables: str | None) -> subprocess.CompletedProcess[str]:
        """Run a program on it."""
        if self.has_own_driver:
            return super().start(name, *arguments, **variables)
        return start_bare_program(name, *arguments, **{**self.variables, **variables})

    def start_command(self, *arguments: object, **variables: str | None) -> subprocess.CompletedProcess[str]:
        """Run gpupool's command line on it."""
        if self.has_own_driver:
            return super().start_command(*arguments, **variables)
        return start_bare_command(*arguments, **{**self.variables, **variables})
