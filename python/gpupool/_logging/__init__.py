"""gpupool's log records in Python's ``logging``, under the logger ``gpupool``.

The compiled part makes records only at levels for which one of gpupool's loggers is enabled. This package tells it the
levels, again whenever one changes: ``logging`` then clears every logger's cache of enabled levels.

A thread of the compiled part hands the records to ``logging``, and ends once there are none. The code that makes a
record cannot do so, because it may not wait for the GIL, and handlers may do anything.
"""

import atexit
import logging
import os
import sys
import threading
import traceback

from gpupool import _native

_LOGGERS = [logging.getLogger(f"gpupool{child}") for child in ("", ".handle", ".library", ".memory", ".runtime")]
_OFF = logging.CRITICAL + 1
# The seconds that the process waits: at its end for handlers to take the last records, before a fork for a thread that
# hands records over to have started.
_PATIENCE = 5.0

_is_ended = False

# Logger, level, file, line, message, time in seconds since 1970, and thread as ``gettid`` numbers it.
_Made = tuple[str, int, str, int, str, float, int]


class _Enabled(dict[int, bool]):
    """A logger's cache of the levels that it is enabled for."""

    def clear(self) -> None:
        super().clear()
        _follow()


def start() -> None:
    """Follow the levels of the loggers."""
    _native.start_log(_deliver)
    _LOGGERS[0].addHandler(logging.NullHandler())
    # A later version of logging may have no such cache: then the levels at gpupool's import count.
    if hasattr(_LOGGERS[0], "_cache"):
        _LOGGERS[0]._cache = _Enabled()
    _follow()
    atexit.register(_end)
    # A thread that becomes one of Python's holds a lock of the interpreter's for a moment, without the GIL. In Python
    # 3.11 a child that is forked then waits for that lock for ever.
    os.register_at_fork(
        before=lambda: _native.pause_log(_PATIENCE), after_in_parent=_native.resume_log, after_in_child=_after_fork
    )


def _follow() -> None:
    """Tell the compiled part which records are wanted."""
    # Without isEnabledFor, whose caches are just being cleared.
    level = min((one.getEffectiveLevel() for one in _LOGGERS if not one.disabled), default=_OFF)
    level = max(level, logging.root.manager.disable + 1)
    if _is_ended:
        level = _OFF
    _native.set_log_level(level)


def _deliver(records: list[_Made]) -> None:
    threads = {thread.native_id: thread for thread in threading.enumerate()}
    # Python 3.11 keeps its parent's number in a forked child.
    threads.setdefault(os.getpid(), threading.main_thread())
    for record in records:
        try:
            _hand_over(record, threads)
        except BaseException:
            # Such as a filter's error, since handlers deal with their own; there is no caller to raise it to.
            if logging.raiseExceptions and sys.stderr:
                traceback.print_exc()
    # Before Python 3.13 threading never forgets a thread that it has not started.
    if isinstance(threading.current_thread(), threading._DummyThread):
        threading._active.pop(threading.get_ident(), None)  # type: ignore[attr-defined]


def _hand_over(made: _Made, threads: dict[int | None, threading.Thread]) -> None:
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
    _native.end_log(_PATIENCE)


def _after_fork() -> None:
    """Forget, in a forked child, its parent's thread and records."""
    _native.clear_log_records()
    _follow()
