"""Ends of a process that holds all that gpupool gives: nothing may be destroyed, which would be printed."""

import atexit
import os
import sys
import threading

import gpupool
from forking import assert_refused, exit_code_of
from gpupool import _native

# The stream that all is taken on.
STREAM = int(sys.argv[2]) if len(sys.argv) > 2 else 1
pool = gpupool.HandlePool("own", lambda: 0x10, lambda handle: print("destroyed"))
# What nobody lets go before the interpreter does.
held = []


def take():
    with gpupool.stream(STREAM):
        assert pool.handle() == 0x10, "the pool made another handle"
        gpupool.simulated.handle()
        return gpupool.empty(1 << 20), gpupool.simulated.lease()


def with_daemon_threads_that_hold_everything():
    taken = threading.Barrier(5)

    def work():
        mine = take()
        taken.wait()
        threading.Event().wait()
        del mine

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    taken.wait()


def with_threads_that_end_after_the_main_thread():
    taken = threading.Barrier(5)

    def work():
        mine = take()
        taken.wait()
        threading.main_thread().join()
        take()
        del mine

    for _ in range(4):
        threading.Thread(target=work).start()
    taken.wait()


def with_a_pool_whose_segments_are_told_of():
    def follow(event):
        if event.kind == "removed":
            print("told at the end")

    followed = gpupool.MemPool(no_split=True)
    followed.on_segment(follow)
    held.append((followed, followed.empty(1 << 20)))


def with_calls_that_are_refused():
    class Late:
        """Calls gpupool as the interpreter ends its modules."""

        def __init__(self):
            limited, empty = gpupool.MemPool(limit=2 << 20), gpupool.MemPool((lambda *_: 0, lambda *_: None))
            refused = gpupool.HandlePool("refused", lambda: "no address", lambda handle: None)
            # Modules are gone by then.
            self.calls, self.write = [lambda: limited.empty(4 << 20), lambda: empty.empty(1), refused.handle], os.write

        def __del__(self):
            for call in self.calls:
                try:
                    call()
                except Exception as error:
                    self.write(1, f"{type(error).__name__}\n".encode())

    # What ends last.
    sys.late = Late()


def with_use_at_exit():
    held.append(take())
    atexit.register(lambda: print("at exit", len(take())))


def while_another_thread_creates():
    _native.simulate_costly_handles(600.0, 1 << 20)
    begun = threading.Event()

    def create():
        begun.set()
        gpupool.simulated.handle()

    threading.Thread(target=create, daemon=True).start()
    begun.wait()
    held.append(gpupool.empty(1))


def by_an_exception_inside_a_lease():
    with gpupool.simulated.lease():
        held.append(take())
        sys.exit(3)


def at_once():
    held.append(take())
    with gpupool.simulated.lease():
        os._exit(4)


def after_a_fork():
    """End the child too, with threads of its own and what it inherited."""
    held.extend((take(), gpupool.MemPool(), gpupool.empty_pinned(1)))
    child = os.fork()
    if child == 0:
        assert_refused(take, pool.handle, pool.lease, lambda: gpupool.empty(1))
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        held.clear()
        sys.exit(0)
    assert exit_code_of(child) == 0, "the child failed"
    assert gpupool.simulated.stats().leased == 1, "the child released its parent's lease"
    held[:] = [take()]
    print("parent goes on")


def with_pinned_memory_everywhere():
    """Have some that is held, lent, waiting for a stream, being made and being given back."""
    stream = gpupool.Stream()
    _native.host_submit(stream)
    held.append(gpupool.empty_pinned(1 << 20, stream))
    held.append(memoryview(gpupool.empty_pinned(1 << 20)))
    gpupool.empty_pinned(1 << 20, stream).free()
    gpupool.empty_pinned(1 << 28).free()
    gpupool.empty_cache()
    gpupool.warm_pinned(1 << 30, background=True)

    def work():
        while True:
            gpupool.empty_pinned(1 << 16, stream)

    threading.Thread(target=work, daemon=True).start()


def with_handles_everywhere():
    ready, never = threading.Barrier(3), threading.Event()

    def hold(forever):
        pool.handle(gpupool.Stream())
        gpupool.simulated.handle()
        ready.wait()
        if forever:
            never.wait()

    threading.Thread(target=hold, args=(True,), daemon=True).start()
    threading.Thread(target=hold, args=(False,)).start()
    ready.wait()
    pool.handle()
    atexit.register(lambda: print("at exit", pool.handle() == 0x10))


def inside_a_lease_and_after_the_pools():
    never = threading.Event()
    held.append(pool.lease())
    threading.Thread(target=lambda: (pool.lease(), never.wait()), daemon=True).start()
    atexit.register(lambda: print("at exit", pool.stats().leased > 0))
    with pool.lease():
        sys.exit(3)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
