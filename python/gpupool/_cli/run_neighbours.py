"""The options of ``gpupool run`` about neighbours: variables of the program and of the processes that it starts."""

import argparse
import os

from gpupool._cli.arguments import MOST_BYTES, memory, whole

_SWITCH = "GPUPOOL_NEIGHBOURS"
# The options, and the variables that they set.
_SETTINGS = {
    "name": "GPUPOOL_NEIGHBOUR_NAME",
    "guarantee": "GPUPOOL_NEIGHBOUR_GUARANTEE",
    "most": "GPUPOOL_NEIGHBOUR_MOST",
    "priority": "GPUPOOL_NEIGHBOUR_PRIORITY",
}
# The options that the next argument belongs to; a directory belongs to an option by an equals sign.
WITH_VALUES = tuple(f"--{name}" for name in _SETTINGS)
# What the variable takes.
_MOST_PRIORITY = (1 << 31) - 1


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group(
        "neighbours",
        "Let the program give memory back to others on the same GPU before these fail, and be given some, if they are "
        "neighbours, too. Each of these options makes it one. They set variables, so they hold for the processes that "
        "the program starts, each by itself.",
    )
    group.add_argument(
        "--neighbours",
        nargs="?",
        const="",
        metavar="DIRECTORY",
        help="of all programs of this user on this machine; or --neighbours=DIRECTORY, for containers that share this "
        "directory",
    )
    group.add_argument("--name", type=_name, help="its name in lists and errors (default: the script's or module's)")
    group.add_argument(
        "--guarantee", type=memory(0), metavar="SIZE", help="it is never asked to go below, such as 8GiB"
    )
    group.add_argument("--most", type=memory(0), metavar="SIZE", help="above this, it is asked first")
    group.add_argument(
        "--priority",
        type=whole(-_MOST_PRIORITY, _MOST_PRIORITY),
        metavar="N",
        help="those with the lowest number are asked first (default: 0)",
    )


def prepare(parser: argparse.ArgumentParser, options: argparse.Namespace, target: str) -> None:
    """Check the options, and set the variables.

    Args:
        parser: What complains.
        options: The options.
        target: The script or module.

    Raises:
        OSError: The directory cannot be read.
    """
    given = {name: getattr(options, name) for name in _SETTINGS if getattr(options, name) is not None}
    if given.get("guarantee", 0) > given.get("most", MOST_BYTES):
        parser.error("--guarantee must be at most --most")
    if options.neighbours:
        os.scandir(options.neighbours).close()
        # The program may change its folder. This also has a slash, by which it is a directory there.
        os.environ[_SWITCH] = os.path.abspath(options.neighbours)
    elif (given or options.neighbours is not None) and os.environ.get(_SWITCH, "") in ("", "0"):
        os.environ[_SWITCH] = "1"
    if os.environ.get(_SWITCH, "") not in ("", "0") and _is_name(program := os.path.basename(target)):
        # To the system all of these programs have one name.
        os.environ.setdefault(_SETTINGS["name"], program)
    os.environ.update({_SETTINGS[name]: str(value) for name, value in given.items()})


def _is_name(text: str) -> bool:
    """Return whether a text can be a name: paths and arguments may hold bytes that are none."""
    return text.isprintable() and text not in ("", "-")


def _name(text: str) -> str:
    if not _is_name(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name")
    return text
