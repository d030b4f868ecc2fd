"""A process that has imported PyTorch, and forks for each program that a test runs: to import it anew takes seconds.

Importing PyTorch starts neither the driver nor gpupool, so a fork of that process is as good as a new one.
"""

import functools
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from processes import environment_with


class Prepared:
    """The process, which ends when this one does."""

    def __init__(self, folders: list[Path]) -> None:
        command, pipe = [sys.executable, "-X", "faulthandler", "-W", "ignore", __file__], subprocess.PIPE
        environment = environment_with(folders)
        self._server = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, start_new_session=True)

    def run(self, program: Path, *arguments: object, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a program in a fork until it ends."""
        with tempfile.TemporaryDirectory() as folder, selectors.DefaultSelector() as answers:
            command = [str(program), *map(str, arguments)]
            self._server.stdin.write(json.dumps([folder, command]).encode() + b"\n")
            self._server.stdin.flush()
            answers.register(self._server.stdout, selectors.EVENT_READ)
            if not answers.select(timeout):
                os.killpg(self._server.pid, signal.SIGKILL)
                prepared.cache_clear()
                raise subprocess.TimeoutExpired(command, timeout)
            code = int(self._server.stdout.readline())
            said, complained = (Path(folder, name).read_text() for name in ("out", "err"))
            return subprocess.CompletedProcess(command, code, said, complained)


@functools.cache
def prepared(*folders: Path) -> Prepared:
    """Return the process whose programs can import what is in these folders."""
    return Prepared(list(folders))


def become(folder: str, command: list[str]) -> None:
    """Run a program in this process, its output in files of the folder."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = command
    sys.path[0] = str(Path(command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")


def serve() -> None:
    """Fork for each line of the input, and say how the fork ended."""
    import gpupool  # noqa: F401
    import torch  # noqa: F401

    while line := sys.stdin.readline():
        child = os.fork()
        if not child:
            become(*json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
