"""The directory in which a user's neighbours meet: nobody else's, and of a run of tests its own."""

import os
from pathlib import Path

import pytest
from running import run_program

ROOT = os.geteuid() == 0


def meet(variables):
    run_program("neighbours/folder.py", "two_processes_meet", **variables)


def refused(variables, *words):
    run_program("neighbours/folder.py", "nobody_can_be_met", *words, **variables)


@pytest.fixture
def variables(tmp_path):
    """Return an environment in which `1` stands for a directory below this one, and processes have one device."""
    device = tmp_path / "device"
    device.mkdir()
    return {"GPUPOOL_NEIGHBOURS": "1", "XDG_RUNTIME_DIR": str(tmp_path), "GPUPOOL_HOST_SHARED": str(device)}


def test_it_is_made_for_the_user_alone(variables, tmp_path):
    meet(variables)
    assert (tmp_path / "gpupool").stat().st_mode & 0o777 == 0o700


def test_one_that_others_may_enter_is_refused(variables, tmp_path):
    folder = tmp_path / "gpupool"
    folder.mkdir()
    folder.chmod(0o750)
    refused(variables, str(folder), "others may enter it", "mode 0700")


def test_a_link_to_another_place_is_refused(variables, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "gpupool").symlink_to(tmp_path / "elsewhere")
    refused(variables, str(tmp_path / "gpupool"))


@pytest.mark.skipif(not ROOT, reason="needs root, who may give a directory to another user")
def test_another_users_is_refused(variables, tmp_path):
    folder = tmp_path / "gpupool"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65_000, -1)
    refused(variables, str(folder), "another user's")


@pytest.mark.skipif(not ROOT, reason="needs root, who may give a directory to another user")
def test_another_users_runtime_directory_is_not_taken(variables, tmp_path):
    os.chown(tmp_path, 65_000, -1)
    tmp_path.chmod(0o777)
    meet(variables)
    assert not (tmp_path / "gpupool").exists()
    assert Path(f"/tmp/gpupool-{os.geteuid()}").stat().st_mode & 0o777 == 0o700


def test_in_a_user_namespace_a_user_outside_is_another_one(variables, tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    said = run_program(
        "neighbours/folder.py", "nobody_meets_nobody", **{**variables, "GPUPOOL_NEIGHBOURS": str(folder)}
    )
    if said == "refused\n":
        pytest.skip("needs a user namespace")
