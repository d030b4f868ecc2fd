"""A worker's settings on a real GPU."""

from gpu_helpers import run_program


def test_setting_up_before_devices_are_known_starts_no_driver():
    run_program("telling/worker_settings.py", "starts_no_driver_before_devices_are_known")
