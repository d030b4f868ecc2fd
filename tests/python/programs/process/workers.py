"""A worker process of multiprocessing works, but for one that was forked from a process that used gpupool."""

import multiprocessing

import gpupool


def work(connection):
    try:
        with gpupool.simulated.lease() as lease:
            connection.send(int(lease) != 0 and gpupool.empty(1 << 20).nbytes)
    except gpupool.Error as error:
        connection.send(type(error).__name__)


def main(method, is_used):
    if is_used == "used":
        gpupool.simulated.handle()
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,))
    process.start()
    expected = "Forked" if (method, is_used) == ("fork", "used") else 1 << 20
    answer = ours.recv()
    assert answer == expected, f"the worker answered {answer!r}, not {expected!r}"
    process.join()
    assert process.exitcode == 0, "the worker failed"
    assert gpupool.simulated.handle() != 0, "the parent has no handle"
