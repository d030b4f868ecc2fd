"""A convolution with cuDNN, called through ctypes, by four threads at once.

gpupool.cudnn.path is the file that gpupool loaded, so ctypes gets the very same library, and gpupool's handles fit it.
Results are in true single precision (no TF32) and are checked against NumPy.

Run it with: python examples/convolution_cudnn.py
It needs CuPy, which allocates the memory here.
"""

import ctypes
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ctypes import POINTER, c_float, c_int, c_size_t, c_void_p
from typing import NamedTuple

import cupy
import gpupool
import numpy as np

# Values of cuDNN's enums.
CUDNN_DATA_FLOAT = 0
CUDNN_TENSOR_NCHW = 0
CUDNN_CROSS_CORRELATION = 1
CUDNN_FMA_MATH = 3

IMAGES, CHANNELS, FILTERS, SIDE, FILTER_SIDE = 4, 16, 32, 48, 3
PADDING = 1


class Result(NamedTuple):
    """The result that one thread reports."""

    handle: int
    error: float


class Algorithm(ctypes.Structure):
    """A cudnnConvolutionFwdAlgoPerf_t: an algorithm that cuDNN proposes, best first."""

    _fields_ = (
        ("algo", c_int),
        ("status", c_int),
        ("time", c_float),
        ("memory", c_size_t),
        ("determinism", c_int),
        ("math_type", c_int),
        ("reserved", c_int * 3),
    )


@functools.cache
def load():
    """Load cuDNN and describe the functions used here, which raise if their status is not 0."""
    cudnn = ctypes.CDLL(gpupool.cudnn.path)
    cudnn.cudnnGetErrorString.restype = ctypes.c_char_p

    def check_status(status, function, _arguments):
        if status != 0:
            raise RuntimeError(f"{function.__name__}: {cudnn.cudnnGetErrorString(status).decode()}")

    handle = descriptor = memory = factor = c_void_p
    signatures = {
        "cudnnCreateTensorDescriptor": [POINTER(descriptor)],
        "cudnnSetTensor4dDescriptor": [descriptor] + [c_int] * 6,
        "cudnnDestroyTensorDescriptor": [descriptor],
        "cudnnCreateFilterDescriptor": [POINTER(descriptor)],
        "cudnnSetFilter4dDescriptor": [descriptor] + [c_int] * 6,
        "cudnnDestroyFilterDescriptor": [descriptor],
        "cudnnCreateConvolutionDescriptor": [POINTER(descriptor)],
        "cudnnSetConvolution2dDescriptor": [descriptor] + [c_int] * 8,
        "cudnnSetConvolutionMathType": [descriptor, c_int],
        "cudnnDestroyConvolutionDescriptor": [descriptor],
        "cudnnGetConvolutionForwardAlgorithm_v7": [
            handle,
            *[descriptor] * 4,
            c_int,
            POINTER(c_int),
            POINTER(Algorithm),
        ],
        "cudnnConvolutionForward": [
            handle,
            factor,
            descriptor,
            memory,
            descriptor,
            memory,
            descriptor,
            c_int,
            memory,
            c_size_t,
            factor,
            descriptor,
            memory,
        ],
    }
    for name, types in signatures.items():
        function = getattr(cudnn, name)
        function.argtypes = types
        function.errcheck = check_status
    return cudnn


def describe(kind, cleanup):
    """Create a descriptor of this kind, which lives until `cleanup` ends."""
    cudnn = load()
    descriptor = c_void_p()
    getattr(cudnn, f"cudnnCreate{kind}Descriptor")(ctypes.byref(descriptor))
    cleanup.callback(getattr(cudnn, f"cudnnDestroy{kind}Descriptor"), descriptor)
    return descriptor


def convolve(images, filters):
    """Convolve on a new stream, and return the handle that was used and the result."""
    cudnn = load()
    # `with` makes this CuPy's current stream too, so that CuPy's copies run on it.
    with cupy.cuda.Stream(non_blocking=True) as stream, ExitStack() as cleanup:
        handle = gpupool.cudnn.handle(stream)
        x, w = cupy.asarray(images), cupy.asarray(filters)
        y = cupy.empty((IMAGES, FILTERS, SIDE, SIDE), np.float32)

        x_is, y_is = describe("Tensor", cleanup), describe("Tensor", cleanup)
        cudnn.cudnnSetTensor4dDescriptor(x_is, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, *x.shape)
        cudnn.cudnnSetTensor4dDescriptor(y_is, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, *y.shape)
        w_is = describe("Filter", cleanup)
        cudnn.cudnnSetFilter4dDescriptor(w_is, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, *w.shape)
        convolution = describe("Convolution", cleanup)
        stride, dilation = (1, 1), (1, 1)
        cudnn.cudnnSetConvolution2dDescriptor(
            convolution, PADDING, PADDING, *stride, *dilation, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT
        )
        # The default would let cuDNN round the inputs to TF32.
        cudnn.cudnnSetConvolutionMathType(convolution, CUDNN_FMA_MATH)

        proposals, count = (Algorithm * 8)(), c_int()
        cudnn.cudnnGetConvolutionForwardAlgorithm_v7(
            handle, x_is, w_is, convolution, y_is, len(proposals), ctypes.byref(count), proposals
        )
        best = next(proposal for proposal in proposals[: count.value] if proposal.status == 0)
        scratch = cupy.empty(best.memory, np.uint8)

        one, zero = ctypes.byref(c_float(1)), ctypes.byref(c_float(0))
        cudnn.cudnnConvolutionForward(
            handle,
            one,
            x_is,
            x.data.ptr,
            w_is,
            w.data.ptr,
            convolution,
            best.algo,
            scratch.data.ptr,
            scratch.nbytes,
            zero,
            y_is,
            y.data.ptr,
        )
        stream.synchronize()
        return handle, y.get()


def convolve_on_cpu(images, filters):
    """Convolve in double precision with NumPy."""
    border = (PADDING, PADDING)
    padded = np.pad(images.astype(np.float64), ((0, 0), (0, 0), border, border))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (FILTER_SIDE, FILTER_SIDE), axis=(2, 3))
    # Axes of windows: image, channel, row, column, row and column in the filter.
    products = np.tensordot(windows, filters.astype(np.float64), axes=([1, 4, 5], [1, 2, 3]))
    return np.moveaxis(products, -1, 1)


def check(seed):
    """Do the same convolution on the GPU and on the CPU, and compare."""
    random = np.random.default_rng(seed)
    images = random.standard_normal((IMAGES, CHANNELS, SIDE, SIDE), dtype=np.float32)
    filters = random.standard_normal((FILTERS, CHANNELS, FILTER_SIDE, FILTER_SIDE), dtype=np.float32)
    handle, y = convolve(images, filters)
    expected = convolve_on_cpu(images, filters)
    return Result(handle, float(np.linalg.norm(y - expected) / np.linalg.norm(expected)))


def wave(threads):
    """Check on that many threads at once, and return their results once the threads have ended."""
    all_started = threading.Barrier(threads, timeout=60)

    def work(seed):
        all_started.wait()
        return check(seed)

    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(work, range(threads)))


def main():
    """Run three waves of four threads and print what it took."""
    threads, waves = 4, 3
    results = [result for _ in range(waves) for result in wave(threads)]
    stats = gpupool.cudnn.stats()
    print(f"cuDNN            {'.'.join(map(str, gpupool.cudnn.version))}, {gpupool.cudnn.path}")
    print(f"threads served   {len(results)}, {threads} at a time")
    print(f"handles created  {stats.created} in {stats.create_seconds * 1e3:.1f} ms")
    print(f"handed over      {stats.hand_overs} times")
    print(f"largest error    {max(result.error for result in results):.1e}")


if __name__ == "__main__":
    main()
