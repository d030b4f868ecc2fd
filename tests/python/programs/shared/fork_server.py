"""A process that has imported gpupool and used nothing of it: it runs each program in a fork of itself.

Such a program is as fresh as one in a new interpreter, and costs neither the interpreter's start nor the imports. Its
`OtherProcess` is a fork too, of a process that is made before the program begins.
"""

import ctypes
import functools
import gc
import importlib
import os
import pickle
import runpy
import signal
import socket
import sys
import threading
import types
from multiprocessing.connection import Connection
from pathlib import Path

MOST = 1 << 20
BECOME_SUBREAPER = 36


@functools.cache
def code_of(program: str) -> types.CodeType:
    return compile(Path(program).read_bytes(), program, "exec", dont_inherit=True)


@functools.cache
def is_asked_for_functions(program: str | Path) -> bool:
    """Return whether a program leaves it to who runs it to call the function that it is run for."""
    text = Path(program).read_text()
    return "__main__" not in text and "sys.argv" not in text


def be_in(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def begin_as(name: str, program: str) -> types.ModuleType:
    """Have a new module in place of this one."""
    module = types.ModuleType(name)
    module.__file__ = program
    module.__builtins__ = __builtins__
    sys.modules["__main__"] = sys.modules[name] = module
    return module


class Nursery:
    """A child that makes processes for a program, of which it is the parent all the same."""

    def __init__(self, program: str) -> None:
        self._lock = threading.Lock()
        self._socket, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Whose parent has ended becomes a child of this process.
        ctypes.CDLL(None).prctl(BECOME_SUBREAPER, 1, 0, 0, 0)
        if os.fork() == 0:
            self._socket.close()
            self._make_processes(asked, program)
        asked.close()

    def start(self, serve: types.FunctionType) -> tuple[int, Connection]:
        """Start a process that serves, and return its id and the connection to it."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            message = pickle.dumps((serve.__name__, dict(os.environ)))
            socket.send_fds(self._socket, [message], [theirs.fileno()])
            return int(self._socket.recv(MOST)), Connection(ours.detach())

    def _make_processes(self, asked: socket.socket, program: str) -> None:
        while True:
            message, files, _, _ = socket.recv_fds(asked, MOST, 1)
            if not message:
                os._exit(0)
            reading, writing = os.pipe()
            between = os.fork()
            if between == 0:
                made = os.fork()
                if made:
                    os.write(writing, b"%d" % made)
                    os._exit(0)
                for file in (asked.detach(), reading, writing):
                    os.close(file)
                name, environment = pickle.loads(message)
                be_in(environment)
                # As multiprocessing does where it spawns.
                module = begin_as("__mp_main__", program)
                exec(code_of(program), module.__dict__)
                getattr(importlib.import_module("other_process"), name)(Connection(files[0]))
                sys.exit()
            os.waitpid(between, 0)
            asked.send(os.read(reading, MOST))
            for file in (*files, reading, writing):
                os.close(file)


def run(program: str, arguments: list[str]) -> None:
    """Be the program."""
    if program == "-m":
        sys.argv = arguments
        # What was imported for this process is not to be found by that one.
        sys.modules.pop(f"{arguments[0]}.__main__", None)
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = [program, *arguments]
    code = code_of(program)
    if "other_process" in code.co_names:
        importlib.import_module("other_process").nursery = Nursery(program)
    module = begin_as("__main__", program)
    exec(code, module.__dict__)
    if arguments and is_asked_for_functions(program):
        getattr(module, arguments[0])(*arguments[1:])


def serve(asked: socket.socket, places: list[str]) -> None:
    """Run programs, one after the other, until there is nobody left who asks for any."""
    while True:
        message, files, _, _ = socket.recv_fds(asked, MOST, 2)
        if not message:
            return
        program, arguments, environment, folder = pickle.loads(message)
        if program != "-m":
            code_of(program)
        child = os.fork()
        if child == 0:
            asked.close()
            for number, file in enumerate(files, 1):
                os.dup2(file, number)
                os.close(file)
            be_in(environment)
            os.chdir(folder)
            first = folder if program == "-m" else os.path.dirname(program)
            sys.path[:] = [first, *environment["PYTHONPATH"].split(os.pathsep), *places]
            sys.modules["gpupool"]._native.add_site_packages(sys.path)
            return run(program, arguments)
        for file in files:
            os.close(file)
        asked.send(b"%d" % child)
        _, status = os.waitpid(child, 0)
        asked.send(b"%d" % os.waitstatus_to_exitcode(status))


def main(number: str, *modules: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # gpupool looks for wheels where it could be imported from, which each program says for itself.
    known = sys.path[:]
    sys.path[:] = [place for place in known if not place.endswith("site-packages")]
    importlib.import_module("gpupool")
    sys.path[:] = known
    for module in modules:
        importlib.import_module(module)
    assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1, "a fork has no threads"
    given = [os.path.dirname(os.path.abspath(__file__)), *os.environ["PYTHONPATH"].split(os.pathsep)]
    places = [place for place in sys.path if place not in given]
    # What is here is looked at by no collection of garbage in a fork, nor at its end, and so not copied for that.
    gc.freeze()
    serve(socket.socket(fileno=int(number)), places)


if __name__ == "__main__":
    main(*sys.argv[1:])
