"""A worker's settings on a real GPU, each in a process of its own."""

from gpu_helpers import pool_or_skip, run_program


def test_setting_up_before_devices_are_known_starts_no_driver():
    run_program("telling/worker_settings.py", "starts_no_driver_before_devices_are_known")


def test_memory_and_handles_are_as_the_settings_say():
    pool_or_skip("cublas")
    run_program("telling/worker_settings.py", "has_memory_and_handles_as_its_settings_say")


def test_frameworks_that_are_enabled_take_gpupools_memory():
    run_program("telling/worker_settings.py", "gives_frameworks_gpupools_memory")
