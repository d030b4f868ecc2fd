"""The hook that plugs gpupool into frameworks as a program imports them; none is imported for it.

It stands beside the package, not in it: with ``GPUPOOL_ENABLE`` every Python of a machine may load it as it starts, and
the package itself is loaded only once a framework is there. ``gpupool_enable.pth`` calls :func:`start`, and the command
``gpupool run`` calls :func:`install`.
"""

import os
import sys

# The module threading takes longer to import than all of this.
from _thread import _local as _Local

VARIABLE = "GPUPOOL_ENABLE"

# The modules after whose import a framework is there, and the names of gpupool's modules for them.
FRAMEWORKS = {"cuda.core": "cuda_core", "cupy": "cupy", "numba.cuda": "numba", "rmm": "rmm", "torch": "torch"}

# The frameworks that could not be enabled in this process.
failed: "set[str]" = set()

# Type checkers take this for True; the typing module takes longer to import than it is worth in every Python.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class Finder:
    """A finder that lets the others find a framework, and has it enabled when its module has run."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        # The modules that this thread is looking for by the other finders.
        self._local = _Local()

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return what the other finders know of a framework's module, with a loader that also enables it."""
        if FRAMEWORKS.get(name) not in self.names:
            return None
        asked: set[str] = self._local.__dict__.setdefault("asked", set())
        if name in asked:
            return None
        asked.add(name)
        try:
            for finder in sys.meta_path:
                if finder is not self and hasattr(finder, "find_spec"):
                    spec = finder.find_spec(name, path, target)
                    if spec is not None:
                        if hasattr(spec.loader, "exec_module"):
                            spec.loader = _Loader(spec.loader, FRAMEWORKS[name])  # type: ignore[assignment]
                        return spec
        finally:
            asked.discard(name)
        return None


class _Loader:
    """A module's own loader, but for what is done once the module has run."""

    def __init__(self, own: "Any", framework: str) -> None:
        self._own = own
        self._framework = framework

    def __getattr__(self, name: str) -> "Any":
        # While a copy is made it has nothing yet.
        if name == "_own":
            raise AttributeError(name)
        return getattr(self._own, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        create = getattr(self._own, "create_module", None)
        module: ModuleType | None = None if create is None else create(spec)
        return module

    def exec_module(self, module: "ModuleType") -> None:
        # What others ask of the module's loader, they ask of its own.
        spec: Any = module.__spec__
        if spec is not None and spec.loader is self:
            spec.loader = self._own
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._own
        self._own.exec_module(module)
        # Other threads that import it wait until this is done.
        enable(self._framework)


_finder = Finder()
_is_started = False


def install(names: "Iterable[str]") -> None:
    """Have frameworks enabled as they are imported, and those at once that are there already.

    Args:
        names: The names of gpupool's modules for them, of those in :data:`FRAMEWORKS`.
    """
    new = set(names) - _finder.names
    _finder.names |= new
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    for module, name in FRAMEWORKS.items():
        if name in new and module in sys.modules:
            enable(name)


def start() -> None:
    """Do what ``GPUPOOL_ENABLE`` says: names of frameworks with commas between them, or ``all``.

    A wrong name is told by a warning: the variable may be set for every Python of a machine.
    """
    global _is_started
    # Python reads the file twice where lib64 leads to lib.
    if _is_started:
        return
    _is_started = True
    names, wrong = parse(os.environ.get(VARIABLE, ""))
    if wrong:
        warn(told_wrong(wrong))
    if names:
        install(names)


def parse(text: str) -> "tuple[set[str], list[str]]":
    """Return the frameworks that a value of the variable names, and what in it names none."""
    found: set[str] = set()
    wrong = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name == "all":
            found.update(FRAMEWORKS.values())
        elif name in FRAMEWORKS.values():
            found.add(name)
        else:
            wrong.append(name)
    return found, wrong


def told_wrong(names: "list[str]") -> str:
    """Return what is said of names in the variable that are no framework's."""
    known = ", ".join(sorted(FRAMEWORKS.values()))
    return f"{VARIABLE} names {', '.join(map(ascii, names))}, which gpupool cannot enable; there are: {known}, all"


def enable(name: str) -> None:
    """Enable gpupool for a framework that is there; if that fails, warn and let the program go on."""
    try:
        from gpupool._run.enabling import enable

        enable(name)
    except Exception as error:
        failed.add(name)
        warn(f"{name} stays on its own memory, for gpupool could not be enabled: {type(error).__name__}: {error}")


def warn(text: str) -> None:
    """Warn, but raise nothing: the program does not know of gpupool."""
    import warnings

    try:
        try:
            warnings.warn_explicit(text, RuntimeWarning, "gpupool", 1)
        except RuntimeWarning:
            # Here warnings are errors.
            if sys.stderr is not None:
                print(f"gpupool: {text}", file=sys.stderr)
    except (OSError, ValueError):
        # Standard error is closed, or full.
        pass
