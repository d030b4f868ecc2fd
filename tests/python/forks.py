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
import threading
from pathlib import Path

import gpupool
from processes import environment_with, succeeded
from running import PLACES, PROGRAMS, SHARED

SERVER = SHARED / "fork_server.py"
# What most programs import.
IMPORTED = ("gpupool", "errors", "waiting", "subprocess", "json", "tempfile", "multiprocessing.spawn", "logging")
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
        atexit.register(self.close)

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


@functools.cache
def _server(*what: object) -> Server:
    return Server(*what)


def start(
    program: str,
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
    server = _server(flags, (*IMPORTED, *modules), frozenset(at_start.items()))
    place = program if program == "-m" else str(PROGRAMS / program)
    return server.run(place, list(map(str, arguments)), environment, timeout)


def start_program(name: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program."""
    return start(name, *arguments, **options)


def run_program(name: str, *arguments: object, **options: object) -> str:
    """Run a program, which must succeed and complain of nothing; return what it printed."""
    return succeeded(start(name, *arguments, **options))


def start_bare_program(name: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program where no package is installed other than gpupool and those of PYTHONPATH."""
    return start(name, *arguments, flags=("-S",), **{**dict.fromkeys(PLACES), **options})


def run_bare_program(name: str, *arguments: object, **options: object) -> str:
    """Run a program as `start_bare_program` does; it must succeed and complain of nothing. Return what it printed."""
    return succeeded(start_bare_program(name, *arguments, **options))


def start_bare_command(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run gpupool's command line where no package is installed other than gpupool and those of PYTHONPATH."""
    return start_bare_program("-m", "gpupool", *arguments, modules=("gpupool.__main__",), **options)
