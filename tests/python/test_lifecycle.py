"""The end of things, as whole processes: by exit code and output, on the legacy and on per-thread default streams."""

import sys

import pytest

# The legacy default stream and the per-thread one.
STREAMS = [1, 2]

SETUP = """
import atexit, gpupool, multiprocessing, os, sys, threading
stream = int(sys.argv[1]) if len(sys.argv) > 1 else {stream}
pool = gpupool.HandlePool("own", lambda: 0x10, lambda handle: print("destroyed"))

def take():
    with gpupool.stream(stream):
        assert pool.handle() == 0x10 or True
        gpupool.host.handle()
        return gpupool.empty(1 << 20), gpupool.host.lease()
"""

CASES = {
    # How the process ends, and what it prints.
    "daemon threads that hold everything": (
        """
taken = threading.Barrier(5)
def work():
    held = take()
    taken.wait()
    threading.Event().wait()
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
taken.wait()
""",
        0,
        "",
    ),
    "threads that end after the main thread": (
        """
taken = threading.Barrier(5)
def work():
    held = take()
    taken.wait()
    threading.main_thread().join()
    take()
for _ in range(4):
    threading.Thread(target=work).start()
taken.wait()
""",
        0,
        "",
    ),
    "at exit": (
        """
held = take()
atexit.register(lambda: print("at exit", len(take())))
""",
        0,
        "at exit 2\n",
    ),
    "while another thread creates": (
        """
from gpupool import _native
_native.host_set_create_cost(600.0)
begun = threading.Event()
def create():
    begun.set()
    gpupool.host.handle()
threading.Thread(target=create, daemon=True).start()
begun.wait()
take_nothing = gpupool.empty(1)
""",
        0,
        "",
    ),
    "an exception inside a lease": (
        """
with gpupool.host.lease():
    held = take()
    sys.exit(3)
""",
        3,
        "",
    ),
    "at once": (
        """
held = take()
with gpupool.host.lease():
    os._exit(4)
""",
        4,
        "",
    ),
}


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("case", CASES)
def test_a_process_ends_quietly_and_destroys_nothing(run_python, case, stream):
    code, status, output = CASES[case]
    done = run_python(SETUP.replace("{stream}", str(stream)) + code)
    assert (done.returncode, done.stdout, done.stderr) == (status, output, "")


FORK = """
held = take()
child = os.fork()
if child == 0:
    for number, call in enumerate([take, pool.handle, pool.lease, lambda: gpupool.empty(1)]):
        try:
            call()
            os._exit(10 + number)
        except gpupool.Forked:
            pass
    # Threads of the child end, and so does what it inherited.
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    del held
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
held = take()
print("parent goes on")
"""


@pytest.mark.parametrize("stream", STREAMS)
def test_a_forked_child_is_told_and_its_parent_goes_on(run_python, stream):
    done = run_python(SETUP.replace("{stream}", str(stream)) + FORK)
    assert (done.returncode, done.stdout, done.stderr) == (0, "parent goes on\n", "")


MULTIPROCESSING = """
import gpupool, multiprocessing, sys

def work(connection):
    try:
        with gpupool.host.lease() as lease:
            connection.send(int(lease) != 0 and gpupool.empty(1 << 20).nbytes)
    except gpupool.Error as error:
        connection.send(type(error).__name__)

if __name__ == "__main__":
    method, is_used = sys.argv[1:]
    if is_used == "used":
        gpupool.host.handle()
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,))
    process.start()
    print(ours.recv())
    process.join()
    assert process.exitcode == 0 and gpupool.host.handle() != 0
"""


@pytest.mark.parametrize("is_used", ["used", "unused"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_multiprocessing(tmp_path, run_python, method, is_used):
    script = tmp_path / "workers.py"
    script.write_text(MULTIPROCESSING)
    done = run_python(
        f"import runpy, sys; sys.argv[1:] = {[method, is_used]!r}; sys.argv[0] = {str(script)!r};"
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    expected = "Forked" if (method, is_used) == ("fork", "used") else str(1 << 20)
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr


def test_a_second_interpreter_in_the_process_is_refused(run_python):
    module = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    code = f"""
import gpupool, {module} as interpreters
other = interpreters.create()
failed = None
try:
    failed = interpreters.run_string(other, "import gpupool")
except Exception as error:
    failed = error
print(failed)
print(gpupool.host.handle() != 0)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    refusal, goes_on = done.stdout.strip().rsplit("\n", 1)
    assert "subinterpreter" in refusal
    assert goes_on == "True"
