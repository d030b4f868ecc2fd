"""gpupool's log records in Python's ``logging``, under the logger ``gpupool``.

The compiled part makes records only at levels that a logger of gpupool's is enabled for. It learns of them here, and
again whenever a level changes: ``logging`` then clears every logger's cache of what it is enabled for.

A thread hands the records to ``logging``. It starts when records of ``INFO`` or below are first wanted, otherwise with
the first warning, so that a program without either has none. The code that makes a record may not wait for the GIL, and
handlers may do anything.
"""

import _thread
import atexit
import logging
import os
import sys
import threading
import traceback

from gpupool import _native

_LOGGERS = [logging.getLogger(f"gpupool{child}") for child in ("", ".handle", ".library", ".memory", ".runtime")]
_OFF = logging.CRITICAL + 1
# The seconds that the process waits at its end for handlers to take the last records.
_PATIENCE = 5.0

# The event that is set once the thread has handed over all records; None without a thread.
_done: threading.Event | None = None
_is_ended = False


class _Enabled(dict[int, bool]):
    """A logger's cache of the levels that it is enabled for."""

    def clear(self) -> None:
        super().clear()
        _follow()


def start() -> None:
    """Follow the levels of the loggers."""
    _LOGGERS[0].addHandler(logging.NullHandler())
    # A later version of logging may have no such cache: then the levels at gpupool's import count.
    if hasattr(_LOGGERS[0], "_cache"):
        _LOGGERS[0]._cache = _Enabled()
    _follow()
    atexit.register(_end)
    os.register_at_fork(after_in_child=_after_fork)


def _follow() -> None:
    """Tell the compiled part which records are wanted."""
    # Without isEnabledFor, whose caches are just being cleared.
    level = min((one.getEffectiveLevel() for one in _LOGGERS if not one.disabled), default=_OFF)
    level = max(level, logging.root.manager.disable + 1)
    if _is_ended:
        level = _OFF
    elif level <= logging.INFO:
        begin()
    _native.set_log_level(level)


def begin() -> None:
    """Start the thread that hands over records; the compiled part calls this, too, in the main thread."""
    global _done
    if _done is None and not _is_ended:
        done = threading.Event()
        try:
            # No Thread, whose start waits for the thread to run: the caller has logging's lock, and the thread may
            # want that.
            _thread.start_new_thread(_deliver, (done,))
        except RuntimeError:
            # Python 3.12 starts none once the process ends: what there is by then is handed over in the end.
            return
        _done = done


def _deliver(done: threading.Event) -> None:
    while records := _native.take_log_records():
        threads = {thread.native_id: thread for thread in threading.enumerate()}
        for record in records:
            try:
                _hand_over(record, threads)
            except BaseException:
                # Such as a filter's error, since handlers deal with their own; there is no caller to raise it to.
                if logging.raiseExceptions and sys.stderr:
                    traceback.print_exc()
    done.set()


def _hand_over(made: tuple[str, int, str, int, str, float, int], threads: dict[int | None, threading.Thread]) -> None:
    name, level, file, line, message, created, native_id = made
    logger = logging.getLogger(name)
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(name, level, file, line, message, (), None)
    # The record is given the time and thread of the event itself.
    record.relativeCreated += (created - record.created) * 1000
    record.created, record.msecs = created, created % 1 * 1000
    thread = threads.get(native_id)
    record.thread = thread.ident if thread else native_id
    record.threadName = thread.name if thread else f"thread {native_id}"
    logger.handle(record)


def _end() -> None:
    """Hand over the records that are left, before handlers and the interpreter end."""
    global _is_ended
    _is_ended = True
    _native.set_log_level(_OFF)
    _native.end_log()
    if _done is not None:
        _done.wait(_PATIENCE)
    else:
        # What the thread was to hand over, which did not start.
        _deliver(threading.Event())


def _after_fork() -> None:
    """Forget, in a forked child, its parent's thread and records."""
    global _done
    _done = None
    _native.clear_log_records()
    _follow()
