"""What is told follows the levels of Python's loggers, whoever sets them, at any time."""

import logging
import sys

import gpupool
from log_records import Keep, listen, next_record


def levels_count_whoever_sets_them_at_any_time():
    root, ours, handle = (logging.getLogger(name) for name in ("", "gpupool", "gpupool.handle"))
    root.addHandler(Keep())

    def make(name):
        gpupool.HandlePool(name, lambda: 1, lambda handle: None).lease().release()

    def is_told():
        """Return whether the record of a creation comes before that of the next, which is wanted whatever is set."""
        make("first")
        level, disabled = handle.level, root.manager.disable
        handle.setLevel(logging.INFO)
        logging.disable(logging.NOTSET)
        make("next")
        told = []
        while not told or "next" not in told[-1]:
            told.append(next_record("the record of the next creation").getMessage())
        handle.setLevel(level)
        logging.disable(disabled)
        return any("first" in text for text in told)

    assert not is_told(), "told though nothing was asked for"
    root.setLevel(logging.INFO)
    assert is_told(), "not told though the root wants it"
    ours.setLevel(logging.WARNING)
    assert not is_told(), "told though gpupool's logger does not want it"
    handle.setLevel(logging.DEBUG)
    assert is_told(), "not told though the handles' logger wants it"
    logging.disable(logging.INFO)
    assert not is_told(), "told though it is disabled"
    logging.disable(logging.NOTSET)
    assert is_told(), "not told though it is enabled again"
    handle.setLevel(logging.NOTSET)
    assert not is_told(), "told though the handles' logger no longer wants it"
    ours.setLevel(logging.NOTSET)
    assert is_told(), "not told though only the root says what it wants"


def each_logger_has_its_own():
    listen(logging.DEBUG, "gpupool.memory")
    gpupool.simulated.handle()
    kept = [gpupool.empty(20 << 20)]
    logging.getLogger("gpupool.handle").setLevel(logging.INFO)
    logging.getLogger("gpupool.handle").disabled = True
    gpupool.simulated.warm(1)
    kept.append(gpupool.empty(20 << 20))
    told = [next_record().getMessage() for _ in kept]
    assert all("grew by" in text for text in told), f"told of more than memory: {told}"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
