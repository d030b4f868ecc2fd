"""gpupool's records in Python's `logging`, in processes of their own."""

import re

import pytest
from machines import Machine
from programs import HITS

# Records are handed over by a thread: at the end of the process, or when a test waits for one, all of them are there.
SETUP = """
import ctypes, logging, os, queue, sys, threading
import gpupool
from gpupool import _native

records = queue.SimpleQueue()

class Keep(logging.Handler):
    def emit(self, record):
        records.put(record)

def listen(level, name="gpupool"):
    logging.getLogger().addHandler(Keep())
    logging.getLogger(name).setLevel(level)

def wait_for(text):
    while text not in (record := records.get(timeout=60)).getMessage():
        pass
    return record

def threads():
    return len(os.listdir("/proc/self/task"))
"""
TO_STDOUT = "logging.basicConfig(level={level}, stream=sys.stdout, format='%(levelname)s %(name)s %(message)s')\n"


@pytest.fixture
def run(run_python):
    """Run code that ends as it should and complains of nothing, and answer what it prints."""

    def run(code: str, **variables: str) -> str:
        done = run_python(SETUP + code, **variables)
        assert (done.stderr, done.returncode) == ("", 0)
        return done.stdout

    return run


USE = """
gpupool.host.handle()
pool = gpupool.MemPool(limit=64 << 20)
with gpupool.use_mem_pool(pool):
    kept = gpupool.empty(40 << 20)
    try:
        gpupool.empty(60 << 20)
    except gpupool.OutOfMemory:
        pass
    del kept
pool.trim()
gpupool.host.warm(2)
gpupool.host.trim()
"""


@pytest.mark.parametrize("configure", ["", "logging.basicConfig()\n"], ids=["nothing set up", "warnings"])
def test_nothing_is_said_and_no_thread_is_started_unless_asked_for(run, configure):
    assert run(f"before = threads()\n{configure}{USE}print(threads() - before)") == "0\n"


def test_what_is_seldom_is_told_at_info(run):
    time = r"\d+(?:\.\d)? (?:us|ms|s)"
    lines = [
        r"runtime runtime host: 2 device\(s\)",
        rf"handle host 1\.0\.0: handle 1 created on device 0 in {time}, 1\.0 MiB of the device",
        r"memory pool \(0, 1\) on device 0: no memory for 62914560 bytes, waiting for .*",
        r"memory out of memory on device 0: tried to allocate 60\.0 MiB .* whose limit is 64\.0 MiB.*",
        rf"handle host 1\.0\.0: handle 2 created on device 0 in {time}, 1\.0 MiB of the device",
        rf"handle host 1\.0\.0: handle 3 created on device 0 in {time}, 1\.0 MiB of the device",
        rf"handle host: 2 idle handles destroyed on device 0 in {time}",
    ]
    told = run(TO_STDOUT.format(level="logging.INFO") + USE)
    assert re.fullmatch("".join(f"INFO gpupool\\.{line}\n" for line in lines), told), told


def test_growing_moving_and_giving_back_are_told_at_debug(run):
    told = run(
        TO_STDOUT.format(level="logging.DEBUG")
        + """
pool = gpupool.MemPool()
with gpupool.use_mem_pool(pool):
    one, two, three = (gpupool.empty(20 << 20) for _ in range(3))
    del one, three
    four = gpupool.empty(30 << 20)
    del two, four
pool.trim()
"""
    )
    time = r"\d+(?:\.\d)? (?:us|ms|s)"
    grew = r"DEBUG gpupool\.memory pool \(0, 1\) on device 0: grew by (.*) of new and (.*) of moved pages in "
    sizes = re.findall(rf"{grew}{time} for \d+ bytes, (.*) reserved", told)
    assert sizes[:3] == [("20.0 MiB", "0.0 MiB", f"{total}.0 MiB") for total in (20, 40, 60)]
    assert sizes[3][1] != "0.0 MiB"
    assert re.search(
        rf"DEBUG gpupool\.memory pool \(0, 1\) on device 0: trimmed, 60\.0 MiB given back in {time}\n", told
    )


def test_memory_found_after_all_is_told(run):
    told = run(
        TO_STDOUT.format(level="logging.INFO")
        + """
pool = gpupool.MemPool(limit=32 << 20)
with gpupool.use_mem_pool(pool):
    kept = [gpupool.empty(20 << 20)]
    callback = gpupool.on_oom(lambda device, nbytes: bool(kept) and not kept.clear())
    gpupool.empty(30 << 20)
"""
    )
    assert re.search(r"pool \(0, 1\) on device 0: found 31457280 bytes after \d", told)


def test_a_handle_that_fails_and_one_that_memory_had_to_be_given_back_for_are_told(run):
    told = run(
        TO_STDOUT.format(level="logging.INFO")
        + """
_native.host_inject("HandleCreate", "out_of_memory", 0, 1)
gpupool.host.handle()
_native.host_inject("HandleCreate", "other", 0, 1)
try:
    gpupool.host.lease()
except gpupool.LibraryError:
    pass
"""
    )
    assert (
        "INFO gpupool.handle giving back what is not in use for a handle, as there was no memory for it: host: " in told
    )
    assert "INFO gpupool.handle no handle could be made: host: " in told


def test_waits_at_a_limit_are_told(run):
    told = run(
        TO_STDOUT.format(level="logging.INFO")
        + """
gpupool.host.limit = 1
with gpupool.host.lease():
    try:
        gpupool.host.lease(timeout=0.0)
    except gpupool.PoolExhausted:
        pass
    waiting = threading.Thread(target=lambda: gpupool.host.lease(timeout=60.0).release())
    waiting.start()
    while gpupool.host.stats().waits < 2:
        pass
waiting.join()
"""
    )
    waits = re.findall(r"INFO gpupool\.handle host: waited .*? (?:us|ms|s)( in vain)? for a handle on device 0", told)
    assert waits == [" in vain", ""]
    assert "device 0, all of its limit in use\n" in told


def test_a_library_is_told_with_its_file_and_a_handle_with_its_version(tmp_path, run_bare_python):
    machine = Machine("cuda", tmp_path, run_bare_python)
    machine.build()
    file = machine.install("cublas")
    told = machine.run(
        "import logging\n" + TO_STDOUT.format(level="logging.INFO") + "gpupool.cublas.handle(); gpupool.cublas.handle()"
    )
    assert re.findall(r"gpupool\.library (.*) in ", told) == [f"cublas 1.2.3: loaded from {file}"]
    assert re.findall(r"gpupool\.handle (.*) in ", told) == ["cublas 1.2.3: handle 1 created on device 0"]
    assert re.search(r"gpupool\.runtime runtime cuda: 2 device\(s\), driver \d+\.\d+\n", told)


def test_why_the_runtime_is_simulated_is_told(run_bare_python):
    code = "import logging, sys, gpupool\n" + TO_STDOUT.format(level="logging.INFO") + "gpupool.device_count()"
    told = run_bare_python(code, GPUPOOL_RUNTIME=None).stdout
    if "runtime host" not in told:
        pytest.skip("this machine has a GPU")
    assert re.search(r"gpupool\.runtime runtime cuda was passed over: .*\n.*runtime hip was passed over: ", told)


def test_a_hit_is_not_told(run):
    run(
        HITS
        + """
listen(logging.DEBUG)
hits()
gpupool.host.warm(3)
wait_for("handle 4 created")
hits()
gpupool.host.trim()
assert "destroyed" in records.get(timeout=60).getMessage()
"""
    )


def test_levels_follow_whoever_sets_them_at_any_time(run):
    run(
        """
root, ours, handle = (logging.getLogger(name) for name in ("", "gpupool", "gpupool.handle"))
root.addHandler(Keep())

def make(name):
    gpupool.HandlePool(name, lambda: 1, lambda handle: None).lease().release()

def is_told():
    "Whether the record of a creation comes before that of the next one, which is wanted whatever is set."
    make("first")
    level, disabled = handle.level, root.manager.disable
    handle.setLevel(logging.INFO)
    logging.disable(logging.NOTSET)
    make("next")
    told = []
    while not told or "next" not in told[-1]:
        told.append(records.get(timeout=60).getMessage())
    handle.setLevel(level)
    logging.disable(disabled)
    return any("first" in text for text in told)

assert not is_told()
root.setLevel(logging.INFO)
assert is_told()
ours.setLevel(logging.WARNING)
assert not is_told()
handle.setLevel(logging.DEBUG)
assert is_told()
logging.disable(logging.INFO)
assert not is_told()
logging.disable(logging.NOTSET)
assert is_told()
handle.setLevel(logging.NOTSET)
assert not is_told()
ours.setLevel(logging.NOTSET)
assert is_told()
"""
    )


def test_each_logger_has_a_level_of_its_own(run):
    run(
        """
listen(logging.DEBUG, "gpupool.memory")
gpupool.host.handle()
kept = gpupool.empty(20 << 20)
logging.getLogger("gpupool.handle").setLevel(logging.INFO)
logging.getLogger("gpupool.handle").disabled = True
gpupool.host.warm(1)
more = gpupool.empty(20 << 20)
assert ["grew by" in records.get(timeout=60).getMessage() for _ in range(2)] == [True, True]
"""
    )


def test_levels_set_before_the_import_count(run_python):
    code = "import logging, sys\n" + TO_STDOUT.format(level="logging.INFO") + "import gpupool\ngpupool.host.handle()"
    assert "handle 1 created" in run_python(code).stdout


def test_a_record_tells_when_and_on_which_thread_it_was_made(run):
    run(
        """
import time
listen(logging.INFO)
held = threading.Lock()

class Slow(logging.Filter):
    "Has records wait, so that they are handed over later than they were made."
    def filter(self, record):
        with held:
            return True

logging.root.handlers[0].addFilter(Slow())
with held:
    before = time.time()
    thread = threading.Thread(target=gpupool.host.handle, name="worker")
    thread.start()
    thread.join()
    after = time.time()
    ident = threading.get_ident()
    stream = gpupool.Stream()
record = wait_for("handle 1 created")
assert before <= record.created <= after
assert 0 <= record.msecs < 1000 and abs(record.created * 1000 % 1000 - record.msecs) < 1
assert record.name == "gpupool.handle" and record.levelno == logging.INFO
assert record.pathname.endswith(".rs") and record.lineno > 0
gpupool.host.warm(2)
assert wait_for("handle 2 created").thread == ident
gpupool.host.warm(3, background=True)
assert wait_for("handle 3 created").threadName.startswith("thread ")
living = threading.Thread(target=lambda: (gpupool.HandlePool("own", lambda: 1, lambda handle: None).lease(),
                                          records.put(wait_for("own: handle 1"))), name="living")
living.start()
living.join()
assert records.get(timeout=60).threadName == "living"
"""
    )


@pytest.mark.parametrize("interface", ["CFUNCTYPE", "PYFUNCTYPE"], ids=["without the GIL", "with the GIL"])
def test_a_c_caller_never_waits_for_a_handler(run, interface):
    # The handler wants what the caller holds, as a framework's allocation holds that framework's locks.
    run(
        f"""
malloc = ctypes.{interface}(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(gpupool.c_api.malloc)
locked = threading.Lock()

class Wanting(logging.Handler):
    def emit(self, record):
        with locked:
            records.put(record)

logging.getLogger().addHandler(Wanting())
logging.getLogger("gpupool").setLevel(logging.DEBUG)
for _ in range(20):
    with locked:
        assert malloc(20 << 20, 0, None)
for _ in range(20):
    wait_for("grew by")
"""
    )


def test_handlers_may_use_gpupool(run):
    run(
        """
class Using(logging.Handler):
    def emit(self, record):
        gpupool.memory_stats(), gpupool.handle_stats(), gpupool.memory_snapshot()
        with gpupool.host.lease(gpupool.Stream()):
            gpupool.empty(1 << 20, gpupool.Stream(1)).free()
        gpupool.empty_cache()
        records.put(record)

logging.getLogger().addHandler(Using())
logging.getLogger("gpupool").setLevel(logging.INFO)
gpupool.host.handle()
wait_for("handle 1 created")
"""
    )


def test_a_handler_that_raises_stops_nothing(run_python):
    code = """
class Raising(logging.Filter):
    def filter(self, record):
        raise RuntimeError("a filter")
listen(logging.INFO)
raising = Raising()
logging.getLogger("gpupool.handle").addFilter(raising)
gpupool.host.warm(1)
gpupool.empty(1)
logging.getLogger("gpupool.runtime").info("own")
wait_for("runtime host")
"""
    code += """
pool = gpupool.MemPool(limit=1 << 21)
with gpupool.use_mem_pool(pool):
    try:
        gpupool.empty(1 << 22)
    except gpupool.OutOfMemory:
        pass
wait_for("out of memory")
"""
    done = run_python(SETUP + code)
    assert done.returncode == 0
    assert done.stderr.count("RuntimeError: a filter") == 1


def test_none_is_lost_at_the_end_of_the_process(run):
    told = run(
        TO_STDOUT.format(level="logging.INFO")
        + """
numbers = iter(range(1, 10_000))
gpupool.HandlePool("own", lambda: next(numbers), lambda handle: None).warm(3000)
"""
    )
    assert re.findall(r"own: handle (\d+) created", told) == [str(number) for number in range(1, 3001)]


def test_more_than_a_handler_can_take_are_lost_and_counted(run):
    run(
        """
listen(logging.INFO)
released = threading.Event()
logging.root.handlers[0].addFilter(lambda record: released.wait(60))
numbers = iter(range(1, 100_000))
gpupool.HandlePool("own", lambda: next(numbers), lambda handle: None).warm(20_000)
released.set()
lost = wait_for("records were lost")
assert 1 <= int(lost.getMessage().split()[0]) <= 20_000 - 8192
"""
    )


FORK = """
def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_child_forked_before_the_first_use_logs_its_own(run):
    run(
        FORK
        + """
listen(logging.INFO)
def work():
    gpupool.host.handle()
    wait_for("handle 1 created")
in_child(work)
gpupool.host.handle()
wait_for("handle 1 created")
in_child(lambda: in_child(lambda: None))
"""
    )


def test_a_forked_childs_refusal_is_told_once(run):
    run(
        FORK
        + """
listen(logging.INFO)
gpupool.host.handle()
wait_for("handle 1 created")
def work():
    for _ in range(3):
        try:
            gpupool.host.handle()
        except gpupool.Forked:
            pass
    record = wait_for("refused")
    assert record.name == "gpupool.runtime" and "spawn" in record.getMessage()
    _native.end_log()
    from gpupool import _logging
    assert _logging._done.wait(60) and records.empty()
in_child(work)
"""
    )


def test_a_forked_child_does_not_log_what_its_parent_did(run):
    run(
        FORK
        + """
listen(logging.INFO)
begun, released = threading.Event(), threading.Event()
logging.root.handlers[0].addFilter(lambda record: begun.set() or released.wait(60))
gpupool.host.handle()
begun.wait()
gpupool.host.warm(3)
def work():
    released.set()
    try:
        gpupool.host.handle()
    except gpupool.Forked:
        pass
    assert "refused" in records.get(timeout=60).getMessage()
in_child(work)
released.set()
wait_for("handle 4 created")
"""
    )


def test_the_end_is_quiet_with_threads_at_work(run):
    run(
        """
listen(logging.DEBUG)
def work():
    while True:
        gpupool.HandlePool.warm(pool, 1)
        pool.trim()
pool = gpupool.HandlePool("own", lambda: 1, lambda handle: None)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
wait_for("created")
"""
    )
