"""Two threads, each in a callback of its own call, make calls that wait for what the other one's call has in hand."""

import threading
from collections.abc import Callable

import gpupool

PAGE = 2 << 20


class Party:
    """What one thread's calls have in hand."""

    def __init__(self) -> None:
        self.stream = gpupool.Stream()
        self.pool = gpupool.MemPool(limit=4 * PAGE)
        self.range = self.pool.reserve_range(16 * PAGE)
        self.sleeper = gpupool.MemPool()
        self.block = self.sleeper.empty(PAGE)
        self.sleeper.sleep(None)
        self.sleeper.limit = 0

    def commit(self) -> None:
        """Commit more than the limit."""
        self.range.commit(0, 16 * PAGE, self.stream)

    def wake(self) -> None:
        """Wake a pool beyond its limit."""
        self.sleeper.wake()


CALLS = (Party.commit, Party.wake)
TOUCHES: dict[str, Callable[[Party], object]] = {
    "commit": Party.commit,
    "decommit": lambda party: party.range.decommit(0, 16 * PAGE),
    "pin": lambda party: party.range.pin(range(16)),
    "free": lambda party: party.range.free(),
    "wake": Party.wake,
    "sleep": lambda party: party.sleeper.sleep(None),
    "sleep of all": lambda _: gpupool.sleep(backup=None),
    "wake of all": lambda _: gpupool.wake(),
}
# What each thread does in its next callback.
acts: dict[int, Callable[[], None]] = {}


def act(*_: object) -> bool:
    """Do what the thread is to do in a callback."""
    acts.pop(threading.get_ident(), lambda: None)()
    return False


def cross(
    calls: tuple[Callable[[Party], None], Callable[[Party], None]], touch: Callable[[Party], object]
) -> list[str]:
    """Return what the two touches raised."""
    parties, both, said = (Party(), Party()), threading.Barrier(2), []

    def call(number: int) -> None:
        def touch_other() -> None:
            both.wait()
            try:
                touch(parties[1 - number])
            except gpupool.Error as error:
                said.append(str(error))

        acts[threading.get_ident()] = touch_other
        try:
            calls[number](parties[number])
        except gpupool.OutOfMemory:
            return
        raise AssertionError("there is memory beyond the limit")

    threads = [threading.Thread(target=call, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not acts, "a call has called nobody"
    for party in parties:
        party.sleeper.limit = None
    gpupool.wake()
    return said


callback = gpupool.on_oom(act)
for one in CALLS:
    for other in CALLS:
        for name, touch in TOUCHES.items():
            said = cross((one, other), touch)
            if one == other and name == one.__name__:
                refused = [text for text in said if "a callback of on_oom may not wait" in text]
                assert refused, f"{name} is not refused in a callback of the same call: {said}"
callback.remove()
