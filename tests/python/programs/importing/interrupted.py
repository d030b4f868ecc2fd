"""Ctrl-C at any line of gpupool's own import is Ctrl-C, and the next import works. The command then ends quietly."""

import ctypes
import os
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path

PACKAGE = find_spec("gpupool").submodule_search_locations[0] + os.sep


def interrupt_at(wanted):
    """Raise KeyboardInterrupt, as Ctrl-C does, at one of gpupool's lines, by the order in which they run."""
    seen = 0

    def trace(frame, event, argument):
        nonlocal seen
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            seen += 1
            if seen == wanted:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)


def of_the_package(line):
    """Import gpupool twice, and interrupt the first import. Return 1 if that came too late."""
    interrupt_at(line)
    try:
        import gpupool
    except KeyboardInterrupt as error:
        cause = error.__cause__
        assert cause is None, f"the interruption at line {line} was caused by {cause!r}"
    else:
        sys.settrace(None)
        return 1
    import gpupool

    assert gpupool.simulated.handle() != 0, "no handle after the second import"
    gpupool.empty(1000).free()
    return 0


def of_the_command(line):
    """Import the command's parts, and interrupt that. Return 1 if that came too late."""
    from gpupool import __main__

    # Many lines run, of which some are tried.
    interrupt_at(100 * line)
    try:
        status = __main__.main(["--version"])
    except SystemExit:
        sys.settrace(None)
        return 1
    sys.settrace(None)
    assert status == 130, f"the command ends with {status}"
    return 0


def main(what):
    # The system's part of each child's import is done once.
    (library,) = Path(PACKAGE).glob("_native*.so")
    ctypes.CDLL(str(library))
    for line in range(1, 10_000):
        child = os.fork()
        if child == 0:
            status = 2
            try:
                status = globals()[what](line)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                # The ends of interpreters are tested elsewhere.
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 1), f"Ctrl-C at line {line} of the import breaks it"
        if status == 1:
            assert line > 5, f"Ctrl-C came too late at line {line} already"
            return


if __name__ == "__main__":
    main(sys.argv[1])
