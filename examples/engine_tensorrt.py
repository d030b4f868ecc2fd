"""A TensorRT engine, built and run with memory from a MemPool: weights, what layers pass on, inputs and outputs.

Two execution contexts of one engine run at the same time, on a stream each; their results are checked against NumPy.
Once contexts, engine and builder are gone, so is their memory, and the pool has it for what comes next.

Run it with: python examples/engine_tensorrt.py
It needs TensorRT 10 or later (pip install tensorrt) and NumPy.
"""

import gc
import importlib.util

import gpupool
import numpy as np

SIZE, LAYERS = 1024, 4


def build(allocator, weights):
    """Return a serialized engine, a chain of matrix products that each keep what is positive."""
    import tensorrt as trt

    builder = trt.Builder(trt.Logger(trt.Logger.WARNING))
    builder.gpu_allocator = allocator
    network = builder.create_network(0)
    tensor = network.add_input("x", trt.float32, (SIZE, SIZE))
    for matrix in weights:
        constant = network.add_constant((SIZE, SIZE), trt.Weights(matrix)).get_output(0)
        product = network.add_matrix_multiply(tensor, trt.MatrixOperation.NONE, constant, trt.MatrixOperation.NONE)
        tensor = network.add_activation(product.get_output(0), trt.ActivationType.RELU).get_output(0)
    tensor.name = "y"
    network.mark_output(tensor)
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    if plan is None:
        raise RuntimeError(f"TensorRT built no engine; the allocator's last error: {allocator.last_error}")
    return plan


def start(context, pool, stream, host):
    """Let a context work on its stream, and return its input and output, which must live until it is done."""
    given, found = pool.empty(host.nbytes, stream), pool.empty(host.nbytes, stream)
    given.copy_from(host)
    context.set_tensor_address("x", given.ptr)
    context.set_tensor_address("y", found.ptr)
    if not context.execute_async_v3(stream.ptr):
        raise RuntimeError("TensorRT did not start the engine")
    return given, found


def run(allocator, pool, plan, inputs):
    """Run one engine in as many contexts as there are inputs, all at once; return the outputs."""
    import tensorrt as trt

    runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
    runtime.gpu_allocator = allocator
    engine = runtime.deserialize_cuda_engine(plan)
    contexts, streams = [engine.create_execution_context() for _ in inputs], [gpupool.Stream() for _ in inputs]
    for context in contexts:
        context.temporary_allocator = allocator
    works = [start(*each) for each in zip(contexts, [pool] * len(inputs), streams, inputs, strict=True)]
    outputs = [np.empty_like(host) for host in inputs]
    for (_, found), host in zip(works, outputs, strict=True):
        found.copy_to(host)
    return outputs


def main():
    """Build, run, compare, and print what it took."""
    if importlib.util.find_spec("tensorrt") is None:
        print("TensorRT is not installed here; get it with: pip install tensorrt")
        return
    if gpupool.runtime() != "cuda":
        print(f"TensorRT needs a GPU of NVIDIA's, and gpupool's devices here are of the kind {gpupool.runtime()}")
        return
    random = np.random.default_rng(0)
    weights = [random.standard_normal((SIZE, SIZE), dtype=np.float32) / SIZE**0.5 for _ in range(LAYERS)]
    inputs = [random.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in range(2)]
    pool = gpupool.MemPool(limit=8 << 30)
    allocator = gpupool.tensorrt.Allocator(pool)

    plan = build(allocator, weights)
    after_building = pool.stats()
    outputs = run(allocator, pool, plan, inputs)
    gc.collect()
    after = pool.stats()

    error = 0.0
    for host, found in zip(inputs, outputs, strict=True):
        expected = host
        for matrix in weights:
            expected = np.maximum(expected @ matrix, 0)
        error = max(error, float(abs(found - expected).max() / abs(expected).max()))
    assert error < 1e-2, f"TensorRT's results differ from NumPy's by {error:.1e}"
    print(f"to build          {after_building.allocations} blocks, {after_building.peak_live_bytes >> 20} MiB at once")
    print(f"to run            {after.allocations - after_building.allocations} blocks")
    print(f"still in use      {after.live_blocks} blocks")
    print(f"last error        {allocator.last_error}")
    print(f"largest error     {error:.1e}")


if __name__ == "__main__":
    main()
