"""The command ``gpupool``, which also runs as ``python -m gpupool``."""

import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return its exit code: 130 if Ctrl-C ends it, also while it is still being imported."""
    try:
        from gpupool._cli.main import main as run

        return run(arguments)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
