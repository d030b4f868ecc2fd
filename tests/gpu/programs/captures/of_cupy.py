"""Captures by CuPy's own calls, unknown to gpupool: it spoils none, and nothing fails beside them."""

import sys
from concurrent.futures import ThreadPoolExecutor

import cupy
from beside import PER_THREAD, wrong_steps

runtime = cupy.cuda.runtime
KINDS = {
    "blocking": lambda: cupy.cuda.Stream(non_blocking=False),
    "non_blocking": lambda: cupy.cuda.Stream(non_blocking=True),
    "per_thread": lambda: cupy.cuda.Stream.ptds,
}


def main(mode, kind, by):
    mode = getattr(runtime, "streamCaptureMode" + mode)
    step = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "step")
    x, y = cupy.arange(1000.0), cupy.zeros(1000)
    # Loads the kernels, which no capture survives.
    step(x, y)
    y.fill(0)
    runtime.deviceSynchronize()
    stream = KINDS[kind]()
    run_in_thread = ThreadPoolExecutor(1).submit

    def run(work):
        return run_in_thread(work).result() if by == "thread" else work()

    def capture():
        def begin():
            runtime.streamBeginCapture(stream.ptr, mode)
            with stream:
                step(x, y)

        def end():
            graph = runtime.streamEndCapture(stream.ptr)
            executable = runtime.graphInstantiate(graph)
            runtime.graphLaunch(executable, stream.ptr)
            runtime.streamSynchronize(stream.ptr)
            runtime.graphDestroy(graph)

        def check():
            run(end)
            assert (y.get() == 2 * x.get() + 1).all(), "replayed work is wrong"
            y.fill(0)
            runtime.deviceSynchronize()

        run(begin)
        return check

    # On the thread that captures it, its own default stream is the captured one.
    leaves_out = [PER_THREAD] if (kind, by) == ("per_thread", "here") else []
    wrong = wrong_steps(capture, kind, leaves_out)
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    main(*sys.argv[1:])
