"""What is done when a program that ``gpupool run`` runs is over: a snapshot is written, and a report printed.

That is when its threads have ended and the functions that it has given to ``atexit`` have run, however its code ended.
"""

import atexit
import os
import sys
import time
from collections.abc import Iterable

import gpupool
from gpupool._cli import output as _output
from gpupool._report.printable import printable
from gpupool._run import program as _program
from gpupool._traces import whole_file as _whole_file


def prepare(program: str, names: Iterable[str], *, has_report: bool, snapshot: str | None, max_entries: int) -> None:
    """Begin to record, and have the rest done at the end of this process; not of its forked children.

    Args:
        program: What runs.
        names: The frameworks that are enabled as they are imported.
        has_report: Whether to report.
        snapshot: The file for a snapshot.
        max_entries: How many events are kept.

    Raises:
        OSError: The file cannot be written.
    """
    if snapshot is None and not has_report:
        return
    if snapshot is not None:
        # Where it cannot be written, that is known before hours of work.
        _whole_file.check(snapshot)
        snapshot = os.path.abspath(snapshot)
    if snapshot is None:
        gpupool.record_memory_history(context=None, max_entries=max_entries, skip_actions=["free_requested"])
    else:
        gpupool.record_memory_history(max_entries=max_entries)
    began = time.monotonic()

    def end() -> None:
        seconds = time.monotonic() - began
        is_written = True
        try:
            is_written = snapshot is None or _write(snapshot)
            if has_report:
                # Its parts are imported when they are needed, for a program may take no memory at all.
                from gpupool._run import report

                _say(report.report(program, names, seconds))
        except KeyboardInterrupt:
            _say("gpupool run: the report was interrupted")
        except Exception as error:
            _say(f"gpupool run: no report: {type(error).__name__}: {printable(str(error))}")
        if not is_written and _program.has_ended_well():
            # Python asks nothing for the exit code from here on. What else is done at the end of a process is skipped.
            _output.flush_quietly()
            os._exit(1)

    # The first that is registered runs last.
    atexit.register(end)
    os.register_at_fork(after_in_child=lambda: atexit.unregister(end))


def _write(path: str) -> bool:
    try:
        gpupool.dump_snapshot(path)
    except OSError as error:
        _say(f"gpupool run: no snapshot: {printable(path)}: {error.strerror or error}")
        return False
    return True


def _say(text: str) -> None:
    if sys.stdout is not None:
        # The program's own output comes first where both go to one place.
        _output.flush_quietly()
    _output.complain(text)
