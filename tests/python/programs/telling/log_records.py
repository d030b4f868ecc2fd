"""gpupool's records as a program's own handler gets them: at the end of the process, or when it waits for one."""

import logging
import queue

from waiting import LONG

records = queue.SimpleQueue()


class Keep(logging.Handler):
    """Keeps records."""

    def emit(self, record):
        records.put(record)


def listen(level, name="gpupool"):
    """Keep the records of a logger from this level on."""
    logging.getLogger().addHandler(Keep())
    logging.getLogger(name).setLevel(level)


def next_record(what="the next record"):
    """Return the next record, which is about to come."""
    try:
        return records.get(timeout=LONG)
    except queue.Empty:
        raise AssertionError(f"waited in vain for {what}") from None


def wait_for_record(text):
    """Return the next record that says this; those before it are dropped."""
    while text not in (record := next_record(f"a record that says {text!r}")).getMessage():
        pass
    return record
