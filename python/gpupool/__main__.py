"""The command ``gpupool``, which also runs as ``python -m gpupool``."""

import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return its exit code: 130 if Ctrl-C ends it, also while it is still being imported.

    A program that ``gpupool run`` runs ends as it would without gpupool, and what it raises is raised.
    """
    try:
        from gpupool._cli.main import main as command

        ended = command(arguments)
    except KeyboardInterrupt:
        return 130
    return ended if isinstance(ended, int) else ended()


if __name__ == "__main__":
    sys.exit(main())
