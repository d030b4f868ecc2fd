"""Forked children of a process that has handles are refused, and the parent works on."""

import sys
import threading

from forking import assert_refused, in_child
from library_handles import pools, take


def of_the_main_thread():
    take()
    in_child(lambda: assert_refused(*(pool.handle for pool in pools)))
    take()


def of_a_thread():
    def work():
        take()
        in_child(lambda: assert_refused(pools[0].handle))

    take()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
