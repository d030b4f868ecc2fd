"""What was compiled is loaded only where nobody else could have put it: its code runs in the process."""

import os
import re
import tempfile
import warnings
from types import SimpleNamespace

import pytest
from gpupool._compiled import cache

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may give a file to another user")
ANOTHER = 65_000


@pytest.fixture
def path(tmp_path):
    """Return a file that is kept, as it is made."""
    path = tmp_path / "home" / "gpupool" / "torch" / "allocator.so"
    with cache.replacing(path) as (made, place):
        made.write_bytes(b"code")
        made.chmod(0o777)
    assert place == path
    return path


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return where temporary files are."""
    folder = tmp_path / "temporary"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(cache, "_private", {})
    return folder


def test_what_was_made_here_is_used(path):
    assert cache.kept(path) == path
    assert cache.kept(path.with_name("another.so")) is None
    assert cache.kept(path / "in a file") is None


def test_it_is_made_so_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        path = tmp_path / "cache" / "gpupool" / "rmm" / "resource.so"
        with cache.replacing(path) as (made, _):
            made.touch()
    finally:
        os.umask(before)
    assert cache.kept(path) == path
    assert [each.stat().st_mode & 0o777 for each in (path, *path.parents[:3])] == [0o700] * 4


def break_mode(mode):
    return lambda place: place.chmod(mode)


def give_to_group(place):
    os.chown(place, -1, ANOTHER)
    place.chmod(0o720)


def give_away(place):
    os.chown(place, ANOTHER, -1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(give_to_group, "others may write to", marks=ROOT),
        (break_mode(0o702), "others may write to"),
        pytest.param(give_away, f"belongs to user {ANOTHER}", marks=ROOT),
    ],
    ids=["its group", "everybody", "another user"],
)
@pytest.mark.parametrize("level", range(4), ids=["the file", "its folder", "above", "further above"])
def test_what_others_can_change_is_not_used(path, change, said, level, temporary):
    place = [path, *path.parents][level]
    change(place)
    with pytest.raises(cache.NoLibrary, match=f"{place}.*XDG_CACHE_HOME") as refused:
        cache.kept(path)
    assert f"{said} {place}" in str(refused.value) or f"{place} {said}" in str(refused.value)
    if level == 0:
        # It is made anew, and then this user's.
        with cache.replacing(path) as (made, _):
            made.write_bytes(b"new")
        assert cache.kept(path).read_bytes() == b"new"
        assert list(temporary.iterdir()) == []
    else:
        with (
            pytest.warns(RuntimeWarning, match=f"{place}.*XDG_CACHE_HOME") as told,
            cache.replacing(path) as (made, kept),
        ):
            made.write_bytes(b"new")
        (folder,) = temporary.iterdir()
        assert f"is kept in {folder}, for this process alone" in str(told[0].message)
        assert kept.parent == folder
        assert (folder.stat().st_mode & 0o777, cache.kept(kept).read_bytes()) == (0o700, b"new")
        # What was there is as it was.
        assert path.read_bytes() == b"code"


def test_a_process_has_one_folder_of_its_own_warns_once_and_removes_it(path, temporary, monkeypatch):
    path.parent.chmod(0o777)
    at_the_end = []
    monkeypatch.setattr(cache.atexit, "register", lambda *call: at_the_end.append(call))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for name in ("one.so", "another.so"):
            with cache.replacing(path.with_name(name)) as (made, _):
                made.touch()
    assert len(told) == 1
    (folder,) = temporary.iterdir()
    assert sorted(each.name for each in folder.iterdir()) == ["another.so", "one.so"]
    ((remove, *arguments),) = at_the_end
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        remove(*arguments)
    assert folder.exists(), "a forked child removed its parent's folder"
    remove(*arguments)
    assert list(temporary.iterdir()) == []


def test_a_folder_for_temporary_files_that_others_can_change_is_refused_too(path, temporary):
    path.parent.chmod(0o777)
    temporary.chmod(0o777)
    with (
        pytest.warns(RuntimeWarning, match="for this process alone"),
        pytest.raises(cache.NoLibrary, match=f"others may write to {re.escape(str(temporary))}"),
        cache.replacing(path),
    ):
        pytest.fail("made where others can change it")


def test_the_group_of_the_users_own_name_is_nobody_else(path, monkeypatch):
    user = os.geteuid()
    path.parents[1].chmod(0o775)
    place, folder = path.stat(), path.parents[1].stat()
    users = SimpleNamespace(getpwuid={user: SimpleNamespace(pw_gid=folder.st_gid, pw_name="user")}.__getitem__)
    monkeypatch.setattr(cache, "pwd", users)
    for name, members, is_own in [
        ("user", [], True),
        ("user", ["user"], True),
        ("user", ["other"], False),
        ("staff", [], False),
    ]:
        group = SimpleNamespace(gr_name=name, gr_mem=members)
        monkeypatch.setattr(cache, "grp", SimpleNamespace(getgrgid={place.st_gid: group}.__getitem__))
        if is_own:
            assert cache.kept(path) == path
        else:
            with pytest.raises(cache.NoLibrary, match="others may write to"):
                cache.kept(path)


def test_a_folder_in_which_all_make_files_may_be_above(path):
    path.parents[2].chmod(0o1777)
    assert cache.kept(path) == path
    # A link there leads where it leads, which is what counts.
    link = path.parents[2] / "link"
    link.symlink_to(path)
    assert cache.kept(link) == path


def test_a_link_to_what_others_can_change_is_refused(path, tmp_path):
    planted = tmp_path / "planted.so"
    planted.touch()
    planted.chmod(0o666)
    path.unlink()
    path.symlink_to(planted)
    with pytest.raises(cache.NoLibrary, match=r"others may write to .*planted\.so"):
        cache.kept(path)
