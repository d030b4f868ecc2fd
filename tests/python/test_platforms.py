"""What every platform and library gives its users, over ABI doubles: the true bindings, with no GPU.

The doubles abort at a call that no program may make: a dead handle, a stream of another device, the wrong current
device, memory that is not there. So whatever a test looks at, it also shows that no such call was made.
"""

import pytest
from forks import Machine
from programs.shared.libraries import CUDA_LIBRARIES, LIBRARIES
from running import functions_of


@pytest.fixture
def machine(request, tmp_path):
    """Return a machine of the platform or with the library that the test is parametrised with."""
    name = request.param
    if name not in LIBRARIES:
        return Machine(name, tmp_path)
    machine = Machine("cuda" if name in CUDA_LIBRARIES else "hip", tmp_path)
    machine.install(name)
    return machine


ON_PLATFORMS = pytest.mark.parametrize("machine", ["cuda", "hip"], indirect=True)
# The symbols that a library needs for some cases.
NEEDS = {
    "the_stream_is_set_on_every_checkout": "SET_STREAM",
    "a_stream_that_is_refused_is_told": "SET_STREAM",
    "the_stream_is_asked_for_and_set_only_if_it_differs": "GET_STREAM",
}
HANDLES = [
    (case, name, name)
    for case in functions_of("platforms/handles.py", "the_process_ends")
    for name, library in LIBRARIES.items()
    if case not in NEEDS or NEEDS[case] in library.symbols
]


@pytest.mark.parametrize(
    ("case", "machine", "name"), HANDLES, indirect=["machine"], ids=map("-".join, (each[:2] for each in HANDLES))
)
def test_handles(machine, case, name):
    machine.run("platforms/handles.py", case, name)


@pytest.mark.parametrize(("machine", "name"), [(name, name) for name in LIBRARIES], indirect=["machine"], ids=LIBRARIES)
def test_a_process_that_ends_destroys_nothing(machine, name):
    done = machine.start("platforms/handles.py", "the_process_ends", name, FAKE_REPORT="1")
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    counts = dict(line.split() for line in done.stderr.splitlines())
    assert counts[LIBRARIES[name].create] == "3"
    assert LIBRARIES[name].destroy not in counts


PAGES = [
    "free_pages_move_to_where_they_are_needed",
    "it_sleeps_and_wakes",
    "nothing_is_lost_asleep",
    "a_second_device_gets_access",
]
ELSEWHERE = ["without_virtual_memory_it_does_not_sleep", "a_driver_with_fewer_addresses_gives_what_it_has"]


@ON_PLATFORMS
@pytest.mark.parametrize("virtual", ["0", "1"], ids=["segments", "virtual-memory"])
@pytest.mark.parametrize(
    ("program", "case"),
    [
        *(("memory", case) for case in functions_of("platforms/memory.py", *PAGES, *ELSEWHERE)),
        ("captures", "requests_do_not_fail_and_spoil_nothing"),
    ],
)
def test_memory(machine, program, case, virtual):
    machine.run(f"platforms/{program}.py", case, FAKE_VMM=virtual)


@ON_PLATFORMS
@pytest.mark.parametrize("case", PAGES)
def test_memory_of_pages(machine, case):
    machine.run("platforms/memory.py", case, FAKE_VMM="1")


@ON_PLATFORMS
def test_without_virtual_memory_no_pool_sleeps(machine):
    machine.run("platforms/memory.py", ELSEWHERE[0], FAKE_VMM="0")


@ON_PLATFORMS
def test_a_driver_with_fewer_addresses_gives_what_it_has(machine):
    machine.run("platforms/memory.py", ELSEWHERE[1], FAKE_VMM="1", FAKE_ROOM_GIB="100")


@ON_PLATFORMS
@pytest.mark.parametrize("case", functions_of("platforms/copies.py"))
def test_copies(machine, case):
    machine.run("platforms/copies.py", case)


@ON_PLATFORMS
def test_the_legacy_stream_beside_a_captured_blocking_one(machine):
    machine.run("platforms/captures.py", "what_would_use_the_legacy_stream_is_refused")
