"""A thread pins pages while another one commits them, whose callback needs the interpreter."""

import threading

import gpupool

PAGE = 2 << 20

range_ = gpupool.MemPool().reserve_range(64 * PAGE)
begun, about_to_pin = threading.Event(), threading.Event()


def give_nothing(*_):
    begun.set()
    about_to_pin.wait()
    return False


def commit():
    try:
        range_.commit(0, 64 * PAGE, gpupool.Stream())
    except gpupool.OutOfMemory:
        refused.append(True)


refused = []
callback = gpupool.on_oom(give_nothing)
thread = threading.Thread(target=commit)
thread.start()
begun.wait()
about_to_pin.set()
# It waits for the commit, and that for the callback's end.
assert range_.pin([0]) == b"\0", "the page was not committed"
thread.join()
assert refused, "more is committed than there is"
callback.remove()
