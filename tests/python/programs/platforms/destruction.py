"""Handles that are discarded, that cannot be destroyed, and that are left when the process ends."""

import sys
import threading

import gpupool
from double import error_of, fail
from library_double import LibraryDouble
from waiting import in_thread


def a_discarded_handle_is_nobodys_again_and_destroyed_once(name):
    library = LibraryDouble(name)
    pool = library.pool

    def are_destroyed(handles):
        return [library.is_destroyed(handle) for handle in handles]

    leases, gone = library.leased(3)
    for lease in leases:
        lease.discard()
        lease.discard()
    stats = pool.stats(1)
    assert (stats.discarded, stats.idle, stats.leased) == (3, 0, 0), f"three discarded handles are counted as {stats}"
    assert library.destroyed == 0, "discard destroyed a handle at once"
    leases, others = library.leased(2)
    for lease in leases:
        lease.release()
    others += [in_thread(pool.handle, None, 1) for _ in range(4)]
    others.append(pool.handle(device=1))
    assert not set(gone) & set(others), "a discarded handle was given out again"
    assert (pool.stats(1).created, pool.stats(1).discarded) == (5, 3), "released handles were not used again"
    assert are_destroyed(gone) == [False] * 3, "a discarded handle was destroyed before trim"
    # The threads handed the two others on, and the last one keeps its own: one is idle.
    assert [pool.trim(0), pool.trim(1), pool.trim(1)] == [0, 4, 0], "trim destroyed another number of handles"
    assert library.destroyed == 4, "the library was asked to destroy another number of handles"
    assert are_destroyed(gone) == [True] * 3, "trim left a discarded handle"
    assert are_destroyed(others[-1:]) == [False], "trim destroyed the handle of a thread at work"
    stats = pool.stats(1)
    assert (stats.discarded, stats.destroyed, stats.held) == (0, 4, 1), f"after trim the counts are {stats}"


def one_that_cannot_be_destroyed_is_told_and_the_rest_are(name):
    library = LibraryDouble(name)
    pool, destroy = library.pool, library.told.destroy
    number, status = next(iter(library.told.statuses.items()))
    left = []
    for discarded in (4, 3, 0):
        leases, handles = library.leased(4)
        for lease in leases[:discarded]:
            lease.discard()
        for lease in leases[discarded:]:
            lease.release()
        before = library.destroyed
        fail(f"{destroy}={number}:{before + 1}")
        error = error_of(pool.trim)
        said = f"LibraryError {name}: {destroy} failed with {status} ({number}) on device 1, library "
        assert error.startswith(said), f"the failure is told as: {error}"
        fail()
        left += [handle for handle in handles if not library.is_destroyed(handle)]
        assert pool.trim() == 0, "the handle that could not be destroyed was tried again"
        assert library.destroyed - before == 4, "not every handle was tried once"
        assert sum(map(library.is_destroyed, handles)) == 3, "one failure kept others from being destroyed"
        stats = pool.stats(1)
        assert (stats.discarded, stats.idle) == (0, 0), f"a handle is counted as still there: {stats}"
    assert (stats.failures, stats.created, len(left)) == (3, 12, 3), f"{len(left)} handles are left: {stats}"
    assert not set(left) & set(library.leased(4)[1]), "a handle that could not be destroyed was given out again"


def the_process_ends(name):
    pool = LibraryDouble(name).pool
    pool.handle(gpupool.Stream(1))
    is_there, end = threading.Event(), threading.Event()

    def hold():
        pool.handle()
        is_there.set()
        end.wait()

    threading.Thread(target=hold, daemon=True).start()
    is_there.wait()
    in_thread(pool.handle)
    sys.exit(3)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
