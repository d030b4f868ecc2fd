"""What happens at the end of threads, interpreters and processes, and after a fork."""


def test_exit_is_clean_with_handles_everywhere(run_python):
    code = """
import atexit, gpupool, threading
pool = gpupool.HandlePool("own", lambda: 0x10, lambda handle: print("destroyed"))
ready, never = threading.Barrier(3), threading.Event()

def hold(wait):
    pool.handle(gpupool.Stream())
    gpupool.host.handle()
    ready.wait()
    wait and never.wait()

threading.Thread(target=hold, args=(True,), daemon=True).start()
threading.Thread(target=hold, args=(False,)).start()
ready.wait()
pool.handle()
atexit.register(lambda: print("at exit", pool.handle() == 0x10))
"""
    done = run_python(code)
    # Nothing is destroyed when the process ends.
    assert (done.returncode, done.stdout, done.stderr) == (0, "at exit True\n", "")


def test_a_forked_child_gets_a_clear_error_and_the_parent_goes_on(run_python):
    code = """
import gpupool, os
handle, stream = gpupool.host.handle(), gpupool.Stream()
child = os.fork()
if child == 0:
    calls = [gpupool.host.handle, lambda: gpupool.host.handle(64), lambda: gpupool.host.warm(1), gpupool.host.trim,
             gpupool.device_count, gpupool.Stream, stream.query, lambda: gpupool.stream(stream).__enter__()]
    for call in calls:
        try:
            call()
            os._exit(2)
        except gpupool.Forked as error:
            assert "spawn" in str(error)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), gpupool.host.handle() == handle)
"""
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("0 True\n", "")


def test_a_child_forked_before_the_first_use_works(run_python):
    code = """
import gpupool, os
child = os.fork()
if child == 0:
    os._exit(0 if gpupool.host.handle() else 2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), gpupool.host.handle() != 0)
"""
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("0 True\n", "")


def test_a_forked_child_gets_a_clear_error_for_memory_too(run_python):
    code = """
import gpupool, os
pool, stream = gpupool.MemPool(), gpupool.Stream()
buffer = gpupool.empty(1 << 20, stream)
child = os.fork()
if child == 0:
    calls = [pool.stats, pool.snapshot, pool.trim, gpupool.memory_stats, gpupool.memory_snapshot, gpupool.empty_cache,
             lambda: gpupool.use_mem_pool(pool).__enter__(), lambda: pool.capture(stream).__enter__(),
             lambda: gpupool.empty(1, stream), lambda: buffer.record_stream(stream), buffer.free, gpupool.MemPool,
             lambda: gpupool.begin_allocate_to_pool(0, (0, 99))]
    for number, call in enumerate(calls):
        try:
            call()
            os._exit(10 + number)
        except gpupool.Forked as error:
            assert "spawn" in str(error)
    del buffer, pool
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), buffer.nbytes)
buffer.free()
"""
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("0 1048576\n", "")


def test_exit_inside_a_lease_and_after_the_pools_is_clean(run_python):
    code = """
import atexit, gpupool, sys, threading
pool = gpupool.HandlePool("own", lambda: 0x10, lambda handle: print("destroyed"))
kept, never = pool.lease(), threading.Event()
threading.Thread(target=lambda: (pool.lease(), never.wait()), daemon=True).start()
atexit.register(lambda: print("at exit", pool.stats().leased > 0))
with pool.lease():
    sys.exit(3)
"""
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (3, "at exit True\n", "")


def test_a_forked_child_gets_no_lease_and_ends_the_parents_quietly(run_python):
    code = """
import gpupool, os
stream = gpupool.Stream()
lease = gpupool.host.lease(stream)
child = os.fork()
if child == 0:
    calls = [gpupool.host.lease, lambda: gpupool.host.lease(stream), gpupool.host.stats, gpupool.handle_stats,
             lambda: setattr(gpupool.host, "limit", 3)]
    for number, call in enumerate(calls):
        try:
            call()
            os._exit(10 + number)
        except gpupool.Forked:
            pass
    lease.release()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), gpupool.host.stats().leased)
"""
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("0 1\n", "")
