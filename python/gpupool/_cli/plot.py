"""The command ``gpupool plot``: it reads a trace file, has it drawn and writes the picture."""

import os

from gpupool._cli.output import say
from gpupool._plot import draw as _draw
from gpupool._plot import output as _output
from gpupool._plot import page as _page
from gpupool._report.printable import printable
from gpupool._traces import bounds as _bounds
from gpupool._traces import trace as _trace
from gpupool._traces.progress import Progress
from gpupool._traces.replay import HOST_MEMORY


def run(path: str, outputs: list[str], device: int | None, moment: str | None) -> None:
    """Draw the file once, and print the name of each picture."""
    _simulate()
    outputs = outputs or [_page.name_for(path)]
    for output in outputs:
        _output.check(output)
    with Progress(f"reading {printable(os.path.basename(path))}") as progress:
        file = _trace.read_file(path, device, progress)
    with Progress(f"laying out {printable(file.name)}", counts=False):
        picture = _draw.draw(file, moment)
    for output in outputs:
        with Progress(f"drawing {printable(output)}", counts=False):
            _output.write(output, picture)
    others = [other for other in file.devices if other != file.device]
    if others and device is None:
        say(f"device {file.device}, which has most; --device {_bounds.first_of(others, ' or ')} draws another")
    for output in outputs:
        say(f"wrote {printable(output)}")


def _simulate() -> None:
    """Let replays run on a simulated device: a picture needs no GPU, and takes none of its memory."""
    os.environ.setdefault("GPUPOOL_RUNTIME", "host")
    os.environ.setdefault("GPUPOOL_HOST_MEMORY", str(HOST_MEMORY))
