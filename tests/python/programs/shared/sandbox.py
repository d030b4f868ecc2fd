"""What containers and other users do to a process: calls that the system refuses, names that somebody else makes."""

import contextlib
import ctypes
import os
import platform
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ANOTHER_USER = 65_000
# Of each call its number, and what the third argument must be if it is refused for that alone.
_CALLS = {
    "x86_64": {"socket": (41, None), "getsockopt": (55, 17), "pidfd_open": (434, None)},
    "aarch64": {"socket": (198, None), "getsockopt": (209, 17), "pidfd_open": (434, None)},
}
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOWED, _REFUSED = 0x7FFF0000, 0x00050001
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2


def refuse(call: str) -> bool:
    """Have the system refuse a call of this thread, and of those that it starts, by seccomp: False if it cannot."""
    number, third = _CALLS.get(platform.machine(), {}).get(call, (None, None))
    if number is None:
        return False
    # Offsets of `struct seccomp_data`: the call's number, and the lower half of the third argument.
    steps = [(_LOAD, 0, 0, 0), (_EQUAL, 0, 1 if third is None else 3, number)]
    if third is not None:
        steps += [(_LOAD, 0, 0, 32), (_EQUAL, 0, 1, third)]
    steps += [(_RETURN, 0, 0, _REFUSED), (_RETURN, 0, 0, _ALLOWED)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    nothing = ctypes.c_ulong(0)
    return (
        libc.prctl(_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), nothing, nothing, nothing) == 0
        and libc.prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER), program, nothing, nothing) == 0
    )


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Have only so many descriptors left meanwhile."""
    kept = []
    with contextlib.suppress(OSError):
        while True:
            kept.append(os.open("/dev/null", os.O_RDONLY))
    for _ in range(count):
        os.close(kept.pop())
    try:
        yield
    finally:
        for descriptor in kept:
            os.close(descriptor)


def limit_descriptors(most: int) -> None:
    """Lower how many descriptors this process may have."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


_LISTEN = """
import os, socket, sys
folder, first, count, user = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
os.chdir(folder)
if user != os.geteuid():
    os.setgid(user)
    os.setuid(user)
os.umask(0)
one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
one.bind(first + "0" * 32)
one.listen(4096)
for number in range(1, count):
    os.link(first + "0" * 32, f"{first}{number:032x}")
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def many_that_listen(count: int, user: int) -> Iterator[subprocess.Popen]:
    """Have a process of a user that listens under so many names of this user's neighbours, and never answers."""
    folder = Path(os.environ["GPUPOOL_NEIGHBOURS"])
    arguments = (folder, f"gpupool-neighbour-{os.geteuid()}-", count, user)
    command = [sys.executable, "-S", "-c", _LISTEN, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()
