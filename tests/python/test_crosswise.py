"""Threads that wait for each other's calls, with callbacks that need the interpreter: each call ends."""

from running import run_program


def test_callbacks_of_two_threads_do_not_wait_for_each_other():
    run_program("memory/callbacks_crosswise.py")


def test_code_that_waits_with_the_interpreter_leaves_it_to_callbacks():
    run_program("memory/wait_with_interpreter.py")
