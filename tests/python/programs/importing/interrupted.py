"""Ctrl-C at any line of gpupool's own import is Ctrl-C, and the next import works."""

import os
import sys
import traceback


def interrupt_at(wanted):
    """Raise KeyboardInterrupt, as Ctrl-C does, at so many lines of gpupool's."""
    seen = 0

    def trace(frame, event, argument):
        nonlocal seen
        if "/gpupool/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            seen += 1
            if seen == wanted:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)


def in_child(line):
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

    assert gpupool.host.handle() != 0, "no handle after the second import"
    assert gpupool.memory_summary() is not None
    gpupool.empty(1000).free()
    return 0


def main():
    for line in range(1, 10_000):
        child = os.fork()
        if child == 0:
            status = 2
            try:
                status = in_child(line)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                # The ends of interpreters are tested elsewhere.
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 1), f"Ctrl-C at line {line} of gpupool's import breaks it"
        if status == 1:
            assert line > 50, f"gpupool was imported after {line} lines"
            print(line)
            return


if __name__ == "__main__":
    main()
