"""A program that ends in the way that its argument names. It does not know of gpupool."""

import atexit
import os
import signal
import sys
import threading
import time


def well():
    print("all is well")


def by_an_error():
    try:
        raise KeyError("inside")
    except KeyError as error:
        raise ValueError("outside") from error


def by_a_number():
    sys.exit(7)


def by_a_text():
    sys.exit("no more")


def by_nothing():
    sys.exit()


def by_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)


def by_its_own_hook():
    def hook(kind, error, traceback):
        frames = []
        while traceback is not None:
            frames.append(traceback.tb_frame.f_code.co_name)
            traceback = traceback.tb_next
        print("hooked", kind.__name__, error, frames, file=sys.stderr)

    sys.excepthook = hook
    raise ValueError("for the hook")


def by_a_hook_that_fails():
    def hook(kind, error, traceback):
        raise LookupError("the hook's own")

    sys.excepthook = hook
    raise ValueError("for the hook")


def after_its_threads():
    def work():
        threading.main_thread().join()
        print("a thread that goes on", __name__)

    threading.Thread(target=work).start()
    atexit.register(lambda: print("at exit", sys.modules["__main__"].after_its_threads.__name__))
    print("the end of the code")


def at_once():
    sys.stdout.write("not buffered")
    sys.stdout.flush()
    os._exit(3)


def by_too_many_calls():
    by_too_many_calls()


def with_an_error_in_a_thread():
    thread = threading.Thread(target=by_an_error, name="a thread")
    thread.start()
    thread.join()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
