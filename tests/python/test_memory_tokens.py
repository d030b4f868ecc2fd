"""The memory of a device that tests of `tests/gpu` in several processes take turns with."""

import fcntl
import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from memory_tokens import GIB, Tokens, count_tokens
from processes import HERE, environment_with
from waiting import wait_for_end, wait_until

# Takes three tokens until its input ends, and may have a child then that stays.
HOLDER = """
import os, signal, sys
from pathlib import Path
from memory_tokens import Tokens
with Tokens(Path(sys.argv[1]), 4).taken(3):
    child = os.fork() if sys.argv[2] == "forks" else 1
    if not child:
        signal.alarm(60)
        signal.pause()
    print(child, flush=True)
    sys.stdin.readline()
print("given back", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tokens"


def is_somebody_at_the_head(folder):
    """Return whether anybody waits for tokens."""
    file = os.open(folder / "queue", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def start(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@contextmanager
def holder(folder, how):
    """Have another process that holds three of four tokens; return it and the child it has forked."""
    command = [sys.executable, "-c", HOLDER, folder, how]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment_with([HERE]), **pipes) as process:
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            process.kill()


def test_what_processes_keep_is_no_token():
    assert count_tokens(80 * GIB, 12) == 56
    # There is always one, so that tests run one after the other.
    assert count_tokens(16 * GIB, 64) == 1


def test_who_wants_more_than_there_are_gets_all(folder):
    with Tokens(folder, 4).taken(40) as taken:
        assert taken == 4


def test_who_finds_too_few_waits_for_others(folder):
    order = []

    def work():
        with Tokens(folder, 4).taken(2):
            order.append("taken")

    with Tokens(folder, 4).taken(3):
        thread = start(work)
        wait_until(lambda: is_somebody_at_the_head(folder), "the other waits")
        order.append("given back")
    wait_for_end(thread)
    assert order == ["given back", "taken"]


def test_who_wants_many_is_not_overtaken_by_those_that_want_few(folder):
    order = []

    def work(count):
        with Tokens(folder, 4).taken(count):
            order.append(count)

    with Tokens(folder, 4).taken(3):
        many = start(lambda: work(4))
        wait_until(lambda: is_somebody_at_the_head(folder), "the one that wants many waits")
        few = [start(lambda: work(1)) for _ in range(3)]
    wait_for_end(many, *few)
    assert order == [4, 1, 1, 1]


def test_tokens_of_a_killed_process_come_back(folder):
    with holder(folder, "is alone") as (process, _):
        thread_has = threading.Event()

        def work():
            with Tokens(folder, 4).taken(4):
                thread_has.set()

        thread = start(work)
        wait_until(lambda: is_somebody_at_the_head(folder), "this process waits")
        assert not thread_has.is_set()
        process.kill()
        wait_for_end(thread)
        assert thread_has.is_set()


def test_a_child_that_was_forked_meanwhile_holds_none(folder):
    with holder(folder, "forks") as (process, child):
        try:
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "given back\n"
            with Tokens(folder, 4).taken(4) as taken:
                assert taken == 4
        finally:
            os.kill(child, 9)


def test_a_failed_test_gives_its_tokens_back(folder):
    tokens = Tokens(folder, 4)
    with pytest.raises(ZeroDivisionError), tokens.taken(4):
        raise ZeroDivisionError
    with tokens.taken(4) as taken:
        assert taken == 4
