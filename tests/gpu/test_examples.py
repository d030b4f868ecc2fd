"""The examples give right results, and their threads share handles."""

import importlib
import importlib.util
import re

import gpupool
import pytest
from gpu_helpers import import_or_skip, pool_or_skip, run_python
from waiting import wait_until

pytestmark = pytest.mark.device_memory(gib=4)

# What each example needs.
EXAMPLES = {
    "spmv_cusparse": ["cusparse"],
    "convolution_cudnn": ["cudnn"],
    "solve_cudss": ["cudss"],
    "gemm_cholesky": ["cublas", "cusolver"],
    "gates_custatevec": ["custatevec"],
    "contract_cutensornet": ["cutensornet"],
    "contract_cutensor": ["cutensor"],
    "sparse_cusparselt": ["cusparselt"],
}
WAVES = 3


def run_waves(name, wave, threads, created=None):
    """Run waves of threads and check how many handles they made, by default one for each thread. Return all results."""
    created = created or threads
    pools = [pool_or_skip(pool) for pool in EXAMPLES[name]]
    for pool in pools:
        pool.trim()
    before = {pool: pool.stats() for pool in pools}
    results = []
    for _ in range(WAVES):
        results += wave(threads)
        for pool in pools:
            wait_until(lambda pool=pool: pool.stats().held == before[pool].held, f"{pool.name} handles are back")
    for pool in pools:
        after = pool.stats()
        assert after.created - before[pool].created == created
        assert after.hand_overs - before[pool].hand_overs == WAVES * threads - created
        assert after.failures == before[pool].failures
    return results


def example(name):
    """Import an example."""
    import_or_skip("scipy.sparse.linalg")
    return importlib.import_module(name)


def assert_all_differ(handles, threads, created=None):
    """Check that no two threads of a wave, which live at once, have the same handle, and how many all waves had."""
    for first in range(0, len(handles), threads):
        assert len(set(handles[first : first + threads])) == threads
    assert len(set(handles)) == (created or threads)


def test_sparse_products():
    spmv = example("spmv_cusparse")
    matrix = spmv.Poisson(1000)
    assert matrix.unknowns == 10**6
    results = run_waves("spmv_cusparse", lambda threads: spmv.wave(matrix, threads), threads=16)
    assert_all_differ([result.handle for result in results], threads=16)
    assert max(result.error for result in results) < 1e-13


def test_convolutions():
    convolution = example("convolution_cudnn")
    results = run_waves("convolution_cudnn", convolution.wave, threads=4)
    assert_all_differ([result.handle for result in results], threads=4)
    # Single precision is good for about 1e-6 here, TF32 for 3e-4.
    assert max(result.error for result in results) < 2e-5


def test_sparse_solutions():
    pool_or_skip("cudss")
    cudss = example("solve_cudss")
    matrix = cudss.Poisson(128)
    results = run_waves("solve_cudss", lambda threads: cudss.wave(matrix, threads), threads=4)
    assert_all_differ([result.handle for result in results], threads=4)
    assert max(result.residual for result in results) < 1e-11
    assert max(result.error for result in results) < 1e-10


def test_products_and_factors():
    cholesky = example("gemm_cholesky")
    results = run_waves("gemm_cholesky", cholesky.wave, threads=4)
    assert_all_differ([result.cublas_handle for result in results], threads=4)
    assert_all_differ([result.cusolver_handle for result in results], threads=4)
    assert max(result.product_error for result in results) < 1e-13
    assert max(result.factor_error for result in results) < 1e-13


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("gates_custatevec", 1e-13),
        ("contract_cutensornet", 1e-12),
        ("contract_cutensor", 1e-12),
        # Half precision.
        ("sparse_cusparselt", 2e-3),
    ],
)
@pytest.mark.device_memory(gib=7)
def test_of_libraries_that_are_not_the_toolkits(name, most):
    module = importlib.import_module(name)
    pool = pool_or_skip(EXAMPLES[name][0])
    mem_pool = gpupool.MemPool(limit=4 << 30) if pool.name in ("custatevec", "cutensornet") else None
    # A handle with scratch memory, whose last stream may be gone, is passed over while fewer than four others are idle.
    created = 8 if mem_pool else 4
    if mem_pool:
        pool.set_mem_pool(mem_pool)
    try:
        results = run_waves(name, module.wave, threads=4, created=created)
        if mem_pool:
            # A gate may find enough memory in the handle.
            needed = getattr(results[0], "workspace_bytes", 1) > 0
            assert (mem_pool.stats().allocations > 0) == needed
    finally:
        if mem_pool:
            pool.set_mem_pool(None)
            pool.trim()
    assert_all_differ([result.handle for result in results], threads=4, created=created)
    print(f"{pool.name}: largest error: {max(result.error for result in results):.1e}")
    assert max(result.error for result in results) < most


def test_solves_of_nvmath(examples):
    import_or_skip("scipy.sparse.linalg")
    output = run_python(str(examples / "nvmath_solve.py"))
    # It says so where nvmath-python, or the cuDSS that it asks for, is missing.
    assert "pip install 'nvmath-python[cu13]'" in output or "with gpupool" in output


def test_a_session_of_onnx_runtime(examples):
    # Without its CUDA provider the example calls the functions that it would be given.
    assert "still in use      0 blocks" in run_python(str(examples / "session_onnxruntime.py"))


@pytest.mark.parametrize(("name", "package"), [("dask_workers", "distributed"), ("ray_workers", "ray")])
@pytest.mark.device_memory(gib=6)
def test_clusters_share_the_gpu(name, package, examples):
    output = run_python(str(examples / f"{name}.py"))
    if importlib.util.find_spec(package) is None:
        assert f"pip install {package}" in output
    else:
        assert [line.split("  ")[1] for line in output.splitlines()[1:]] == ["cuda", "cuda"]


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.device_memory(gib=6)
def test_runs_as_a_script(name, examples):
    import_or_skip("scipy.sparse.linalg")
    output = run_python(str(examples / f"{name}.py"))
    if not all(getattr(gpupool, pool).available for pool in EXAMPLES[name]):
        assert "get it with: pip install" in output
    else:
        assert "threads served" in output


@pytest.mark.thorough
@pytest.mark.device_memory(gib=8)
def test_training_with_and_without():
    import_or_skip("torch")
    torch_training = importlib.import_module("torch_training")
    lines = run_python(torch_training.__file__).splitlines()
    print("\n".join(lines))
    # peak, "MiB", a step, "ms", loss
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    losses = [float(row[4]) for row in rows.values()]
    assert set(rows) == {"PyTorch", "gpupool"}
    assert abs(losses[0] - losses[1]) < 0.05 * max(losses)
    assert float(rows["gpupool"][0]) <= 1.05 * float(rows["PyTorch"][0])


@pytest.mark.thorough
@pytest.mark.device_memory(gib=6)
def test_frameworks_in_processes_of_their_own_pass_an_array_on(examples):
    import_or_skip("cupy")
    said = run_python(str(examples / "relay_between_frameworks.py"))
    assert said.splitlines()[-1].endswith(": every number is right"), said


@pytest.mark.thorough
def test_two_models_take_turns(examples):
    *turns, _most, same = run_python(str(examples / "models_in_turns.py"), "--mib", "256", "--turns", "4").splitlines()
    assert len(turns) == 3
    assert same == "all 4 results are the same, bit for bit"


@pytest.mark.thorough
def test_a_trainer_and_a_generator_share_weights(examples):
    *_rounds, most, same = run_python(str(examples / "train_and_generate.py"), "--mib", "256").splitlines()
    print(most)
    assert same == "all 4 rounds, the weights and the state are the same, bit for bit"


def test_a_data_set_larger_than_the_memory_it_may_use(examples):
    import_or_skip("cupy")
    lines = run_python(str(examples / "stream_data_set.py"), "--limit-gib", "2", "--gib", "5").splitlines()
    print(lines[-1])
    assert lines[-2] == "0 wrong words"
    assert "100%" in lines[-3]
    # Pieces are freed as they are copied, so that a few of each loader's are there at a time.
    mib = int(re.search(r"pinned memory: (\d+) MiB", lines[-1])[1])
    assert mib < 2 * 1024 * 2
