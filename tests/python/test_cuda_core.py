"""cuda.core's memory from gpupool: the real package over a double of the driver."""

import pytest
from framework_machine import framework_machine
from running import run_bare_program, run_program


@pytest.fixture
def run(tmp_path):
    """Return what runs a program with cuda.core."""
    pytest.importorskip("cuda.core")
    return framework_machine(tmp_path)


def test_buffers_are_gpupools_memory_until_they_are_closed(run):
    run("frameworks/cuda_core_buffers.py", "are_gpupools_memory_until_they_are_closed")


def test_attributes_say_that_it_is_device_memory(run):
    run("frameworks/cuda_core_buffers.py", "say_that_they_are_device_memory")


def test_memory_is_freed_in_the_order_of_the_stream_that_closes_it(run):
    run("frameworks/cuda_core_buffers.py", "are_freed_in_the_order_of_the_stream_that_closes_them")


def test_a_thread_frees_on_its_own_default_stream(run):
    run("frameworks/cuda_core_buffers.py", "are_freed_on_a_thread_s_own_default_stream")


def test_pools_are_honoured(run):
    run("frameworks/cuda_core_resources.py", "honours_pools")


def test_using_enables_first(run):
    run("frameworks/cuda_core_resources.py", "is_enabled_by_using")


def test_each_thread_enables_for_itself_as_an_initializer_does(run):
    run("frameworks/cuda_core_resources.py", "is_enabled_by_each_thread_as_an_initializer_does")


def test_it_may_be_enabled_and_disabled_again(run):
    run("frameworks/cuda_core_resources.py", "may_be_enabled_and_disabled_again")


def test_out_of_memory_and_foreign_streams_are_refused(run):
    run("frameworks/cuda_core_resources.py", "refuses_what_cannot_be", FAKE_MEMORY_MIB="64")


def test_what_fails_leaves_it_as_it_was(run):
    run("frameworks/cuda_core_resources.py", "is_left_as_it_was_by_what_fails")


def test_it_may_have_subclasses(run):
    run("frameworks/cuda_core_resources.py", "may_have_subclasses")


def test_streams_of_every_kind_are_taken(run):
    run("frameworks/cuda_core_resources.py", "takes_streams_of_every_kind")


def test_streams_that_are_made_in_another_way_are_asked(run):
    run("frameworks/cuda_core_resources.py", "asks_streams_that_are_made_in_another_way")


def test_a_forked_child_is_refused(run):
    run("frameworks/cuda_core_resources.py", "is_refused_in_a_forked_child")


def test_threads_use_it_at_once(run):
    run("frameworks/cuda_core_resources.py", "is_used_by_threads_at_once")


def test_captured_memory_is_the_graphs(run):
    run("frameworks/cuda_core_buffers.py", "are_the_graphs_in_a_capture")


def test_buffers_of_both_kinds_share_memory(run):
    run("frameworks/cuda_core_buffers.py", "share_memory_with_gpupool_s")


def test_pinned_buffers_are_the_hosts_and_every_devices(run):
    run("frameworks/cuda_core_pinned.py", "are_the_hosts_and_every_device_s")


def test_pinned_memory_waits_for_the_stream_that_closes_it(run):
    run("frameworks/cuda_core_pinned.py", "wait_for_the_stream_that_closes_them")


def test_pinned_buffers_of_both_kinds_share_memory(run):
    run("frameworks/cuda_core_pinned.py", "share_memory_with_gpupool_s")


def test_pinned_memory_that_is_not_to_be_had(run):
    run("frameworks/cuda_core_pinned.py", "that_are_not_to_be_had_are_refused")


@pytest.mark.parametrize("order", [("gpupool", "cuda.core"), ("cuda.core", "gpupool")])
def test_exits_cleanly_with_live_buffers(run, order):
    run("frameworks/cuda_core_exit.py", *order)


def test_cuda_core_is_imported_when_used():
    run_program("importing/leaves_alone.py", "these_modules", "cuda_core", "cuda")


def test_a_missing_or_old_cuda_core_is_named(tmp_path):
    run_bare_program("importing/missing.py", "cuda.core", "cuda.core cannot be imported", "cuda-core>=1.2")
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda/core.py").write_text('__version__ = "1.1.0"\n')
    old = "cuda.core 1.1.0 is too old: 1.2 is needed"
    run_bare_program("importing/missing.py", "cuda.core", old, PYTHONPATH=str(tmp_path))
