"""Pools for libraries that gpupool does not know."""

import ctypes

import gpupool
import pytest
from running import run_program


def test_python_callables(make_pool):
    calls = []
    pool = make_pool(
        create=lambda: calls.append("create") or 0x77,
        destroy=lambda handle: calls.append(("destroy", handle)),
        set_stream=lambda handle, stream: calls.append(("set_stream", handle, stream)),
    )
    stream = gpupool.Stream()
    assert pool.handle(stream) == 0x77
    assert pool.handle(stream) == 0x77
    assert pool.close() == 1
    set_stream = ("set_stream", 0x77, stream.ptr)
    assert calls == ["create", set_stream, set_stream, ("destroy", 0x77)]


def test_c_addresses(make_pool):
    calls = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
    def create(handle):
        handle[0] = 0x55
        return 0

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def destroy(handle):
        calls.append(handle)
        return 0

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def set_stream(handle, stream):
        calls.append((handle, stream))
        return 0

    functions = {"create": create, "destroy": destroy, "set_stream": set_stream}
    addresses = {name: ctypes.cast(function, ctypes.c_void_p).value for name, function in functions.items()}
    pool = make_pool(**addresses)
    stream = gpupool.Stream()
    assert pool.handle(stream) == 0x55
    assert pool.close() == 1
    assert calls == [(0x55, stream.ptr), 0x55]


def test_a_c_function_that_refuses(make_pool):
    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
    def create(handle):
        return 7

    pool = make_pool(create=ctypes.cast(create, ctypes.c_void_p).value)
    with pytest.raises(gpupool.LibraryError, match=r"test: create failed with status \(7\) on device 0") as raised:
        pool.handle()
    assert (raised.value.library, raised.value.function, raised.value.code) == ("test", "create", 7)


def test_a_callable_that_raises_is_the_cause_and_the_pool_goes_on(make_pool):
    failures = [KeyError("first")]

    def create():
        if failures:
            raise failures.pop()
        return 0x99

    pool = make_pool(create=create)
    with pytest.raises(gpupool.LibraryError, match="test: create failed with KeyError") as raised:
        pool.handle()
    assert isinstance(raised.value.__cause__, KeyError)
    assert pool.handle() == 0x99
    stats = pool.stats()
    assert (stats.created, stats.held, stats.failures) == (1, 1, 1)


@pytest.mark.parametrize("answer", [0, None, -1, 2**64, "x"])
def test_create_that_answers_no_handle(make_pool, answer):
    pool = make_pool(create=lambda: answer)
    with pytest.raises(gpupool.LibraryError, match="test: create failed with"):
        pool.handle()
    assert pool.stats().created == 0


def test_a_callback_that_asks_its_own_pool_ends_in_an_error_or_a_handle(make_pool):
    asked = []

    def create():
        if not asked:
            asked.append(True)
            return pool.handle() + 1
        return 0x4000

    pool = make_pool(create=create)
    with pytest.raises(gpupool.InvalidValue, match="must not"):
        pool.handle()
    assert pool.handle() == 0x4000
    stats = pool.stats()
    assert stats.created == stats.idle + stats.held == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("", int, int),
        ("x", None, int),
        ("x", int, "y"),
        ("x", 0, int),
        ("x", int, 0),
        ("x", int, int, 0),
        ("x", -1, int),
        ("x", int, int, 1.5),
    ],
)
def test_wrong_functions(arguments):
    with pytest.raises(gpupool.InvalidValue):
        gpupool.HandlePool(*arguments)


def test_a_name_is_shown_on_one_line():
    def refuse():
        raise RuntimeError("none today")

    name, shown = "two\nlines \x1b[31m", "two\\nlines \\u{1b}[31m"
    pool = gpupool.HandlePool(name, refuse, lambda handle: None)
    assert pool.name == name
    assert f"HandlePool {shown}" in repr(pool)
    with pytest.raises(gpupool.LibraryError) as raised:
        pool.handle()
    assert raised.value.library == name
    assert str(raised.value).startswith(f"{shown}: create failed")
    pool.close()
    with pytest.raises(gpupool.InvalidValue, match=r"the two\\nlines \\u\{1b\}\[31m pool is closed"):
        pool.handle()


def test_a_closed_pool(make_pool):
    pool = make_pool()
    pool.handle()
    assert pool.close() == 1
    for call in (pool.handle, lambda: pool.warm(1)):
        with pytest.raises(gpupool.InvalidValue, match="the test pool is closed"):
            call()
    assert not pool.available
    assert pool.close() == 0
    with pytest.raises(gpupool.InvalidValue, match="shared by the whole process"):
        gpupool.simulated.close()


def test_a_pool_describes_itself(make_pool):
    pool = make_pool()
    assert (pool.name, pool.version, pool.path, pool.available) == ("test", None, None, True)
    assert repr(pool) == "<gpupool.HandlePool test>"
    assert gpupool.simulated.version == (1, 0, 0)


def test_pools_made_in_a_loop_end_in_unavailable():
    run_program("process/limits.py", "of_pools")


def test_a_thread_that_does_not_start_is_unavailable():
    # No system has so large a stack for a thread.
    run_program("process/limits.py", "of_threads", RUST_MIN_STACK=str(1 << 60))
