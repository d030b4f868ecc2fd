"""The layout that the sources keep: what uses what, sizes of circles, where numbers and counters are.

``python tests/layout.py [ROOT]`` prints a line for everything that breaks a rule, and exits with 1 if there is any. It
reads Rust as text: `use`, and paths that begin with crate, self or super. What a mod.rs passes on leads to the file
that defines it. Tests are left out.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# The most files of a folder that may use each other in one circle, directly or through others.
CIRCLES = {"src": 5, "src/handle": 4}
# The rooms of a folder, which are files or folders, in columns. A room uses rooms of the columns to its right; those of
# its own only where `&` joins them. Every folder needs a place; a file without one, such as lib.rs, may use all.
ARROWS = {
    "src": "python -> c_api -> replay, summary, recording -> handle -> memory -> library -> runtime "
    "-> process & observe -> sync & ids & error",
    "src/memory": "plug -> peer -> sleep -> host -> report -> range -> route -> serve -> cache -> pool -> device",
}
# The files that may keep a function which is given to them from above, and call it: what an event, or the scope of a
# context, is only those know who give it. In circles the functions count as uses.
KEEPERS = [
    "src/memory/route/routes.rs",
    "src/observe/delivery.rs",
    "src/observe/recording.rs",
    "src/sync/may_wait.rs",
]

# Where the numbers stand that somebody chose, and the most of them. Elsewhere in its folder a constant is derived from
# those (0, 1 and 2 may help), or its numbers are hexadecimal or binary: bits, codes, sizes of tables, bounds on others.
TUNING = "src/memory/tuning.rs"
MOST_CHOSEN = 35

# The most counters of one declaration that any other file may name. Those that count name them all.
MOST_NAMED = 4
COUNT = ("src/handle/device_pool.rs", "src/memory/report/summary.rs")

# Where `unsafe` may be, except in tests and models: in all that is in a folder, or in the files that are named. Clippy
# requires a comment before each block.
UNSAFE = {
    # Where C, Python, drivers and libraries call gpupool, or are called.
    "src/c_api": "",
    "src/memory/plug": "",
    "src/python/ffi": "",
    "src/runtime": "",
    "src/observe": "nvtx.rs",
    "src/library": "api.rs device_mem_handler.rs find.rs functions.rs mod.rs vendor.rs workspace.rs",
    "src/library/vendors": "simulated.rs",
    # What the process and its threads share.
    "src": "pooled_slice.rs process.rs shared_object.rs",
    "src/replay": "server.rs",
    "src/sync": "owner_lock.rs schedule.rs thread.rs",
    # A thread takes a heap's lock as its owner; a graph keeps what it uses.
    "src/memory/cache": "block_user.rs stream_cache.rs",
    # Memory is mapped, unmapped and released.
    "src/memory/device": "address_range.rs retired.rs segments.rs supply.rs",
    "src/memory/serve": "extents.rs growth.rs pools.rs reserve.rs segments.rs trim.rs",
    "src/memory/peer": "mapping_cache.rs sharing.rs",
    "src/memory/sleep": "asleep.rs awake.rs backup.rs",
    # What was just committed is filled.
    "src/memory/range": "commit.rs",
    # Users free an address, borrow pinned memory as bytes, and copy bytes between a device and the host.
    "src/memory": "copies.rs mod.rs pinned.rs staging.rs",
}

# What gpupool.h and Rust's users each call so: a program in Rust that has both names the module.
SHARED_NAMES = ("Event", "Recording")

# What makes an object of Python's, or an exception of an error, as an `?` does where exceptions are returned; and what
# ends the object that was in a place. Either may run Python, which may want the lock that is held meanwhile.
LOCKED = re.compile(r"^( *)(?:let (?:mut )?(\w+) = )?.*?\block\([^()]*\)(.*)$", re.MULTILINE)
BLOCK = re.compile(r" *(?:if let|while let|match|for)\b")
SIGNATURE = re.compile(r"\bfn \w+[^;{]*\{")
MAKES = re.compile(r"\.into\(\)|\bnew_err\(|\bPy::new\(|\.call\w*\(")
ENDS = re.compile(r"^ *lock\(.*\)\.(?:insert|remove|replace|take|clear)\(.*\);$")

CONSTANT = re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))? +)?const (\w+): [^;=]*(?:; *\w+\][^;=]*)*=([^;]*);", re.MULTILINE)
DECIMAL = re.compile(r"\b(?!0[xb])[0-9][0-9_]*(?=\b|[a-z])")
COUNTERS = re.compile(r"^counters! \{.*?^    pub struct (\w+) as (.*?)^\}$", re.MULTILINE | re.DOTALL)
USE = re.compile(r"^[ \t]*(pub(?:\([^)]*\))? +)?use\s+([^;]+);", re.MULTILINE)
TESTS = re.compile(
    r"^( *)#\[cfg\((?:all\()?test\b[^\n]*\n(?: *#\[[^\n]*\n)*\1mod \w+ \{\n.*?^\1\}$", re.MULTILINE | re.DOTALL
)
# Not a type of a trait's or an impl's, which is indented.
TYPE = re.compile(
    r"^(?: *(?:pub(?:\([^)]*\))? +)?(?:unsafe +)?(?:struct|enum|union|trait)|(?:pub(?:\([^)]*\))? +)?type) +([A-Z]\w*)",
    re.MULTILINE,
)
# Functions of Rust: what keeps one uses whoever gives it. Those of C are a library's, boxed ones a program's.
FUNCTION = r"(?<!\" )(?:unsafe )?fn\("
PATH = re.compile(r"\b[a-z_]\w*(?:::\w+)*\b")
Module = tuple[str, ...]


def spread(tree: str) -> list[list[str]]:
    """Return the paths of a `use` in parts: of ``a::{b, c::{d, e as f}}`` those of a::b, a::c::d and a::c::e."""
    while group := re.search(r"([\w:]*)\{([^{}]*)\}", tree):
        inside = [group[1] + part.strip() for part in group[2].split(",") if part.strip()]
        tree = tree.replace(group[0], ", ".join(inside))
    return [re.sub(r"\s+as\s+\w+", "", path).strip().split("::") for path in tree.split(",")]


class Crate:
    """The modules of a crate, and which of them each one uses."""

    def __init__(self, source: Path) -> None:
        self.files: dict[Module, Path] = {}
        for path in sorted(source.rglob("*.rs")):
            parts = path.relative_to(source).with_suffix("").parts
            self.files[parts[:-1] if parts[-1] in ("lib", "mod") else parts] = path
        # Without comments and tests.
        self.code = {m: TESTS.sub("", re.sub(r"//.*", "", path.read_text())) for m, path in self.files.items()}
        self.passed_on: dict[Module, dict[str, list[str]]] = {}
        found: dict[Module, list[list[str]]] = {}
        for module, path in self.files.items():
            text = self.code[module]
            uses = [(public, leaf) for public, tree in USE.findall(text) for leaf in spread(tree)]
            self.passed_on[module] = {leaf[-1]: leaf for public, leaf in uses if public}
            body = re.sub(r"\bpub\(in [\w:]+\)", "pub", USE.sub("", text))
            here = [name.split("::") for name in re.findall(r"\b(?:crate|self|super)(?:::\w+)+", body)]
            found[module] = here + [leaf for public, leaf in uses if not (public and path.stem in ("lib", "mod"))]
        self.uses = {
            module: {used for path in paths if (used := self.resolve(module, path)) not in (None, module)}
            for module, paths in found.items()
        }
        # Who keeps a function that it is given uses the module that has the function.
        self.given: dict[Module, set[Module]] = {}
        for keeper, setters in self.setters().items():
            call = re.compile(rf"\b(?:{'|'.join(setters)})\(((?:[^()]|\([^()]*\))*)\)")
            for giver in (module for module in self.files if module == keeper or keeper in self.uses[module]):
                imported = {leaf[-1]: leaf for leaf in found[giver]}
                for text in call.findall(self.code[giver]):
                    paths = [path.split("::") for path in PATH.findall(text)]
                    functions = {self.resolve(giver, imported.get(path[0], path[:1]) + path[1:]) for path in paths}
                    self.given.setdefault(keeper, set()).update(functions - {None, keeper} or {giver} - {keeper})
        for keeper, givers in self.given.items():
            self.uses[keeper] |= givers

    def setters(self) -> dict[Module, list[str]]:
        """Return what gives a module functions that it keeps, in a static or a struct, to call them later."""
        names = {FUNCTION}
        for text in self.code.values():
            names |= {rf"{name}\b" for name in re.findall(rf"\btype (\w+) = {FUNCTION}", text)}
            names |= {
                rf"{name}\b"
                for name, fields in re.findall(r"\bstruct (\w+) \{(.*?)^\}", text, re.MULTILINE | re.DOTALL)
                if re.search(rf": {FUNCTION}", fields)
            }
        kept = "|".join(sorted(names))
        given = re.compile(rf"\bfn (\w+)(?:<[^(]*>)?\([^;{{]*?: [^;,{{]*?(?:{kept})")
        static = re.compile(rf"\bstatic (\w+): [^=]*?(?:{kept})")
        field = re.compile(rf"\bstruct \w+ \{{[^}}]*?: [^,]*?(?:{kept})")
        found: dict[Module, list[str]] = {}
        for module, text in self.code.items():
            if (statics := static.findall(text)) or field.search(text):
                found[module] = given.findall(text) + [rf"{name}\.set" for name in statics]
        return {module: setters for module, setters in found.items() if setters}

    def resolve(self, module: Module, path: list[str], depth: int = 0) -> Module | None:
        """Return the module that defines what a path in a module means; None for another crate's."""
        at, rest = () if path[0] == "crate" else module, list(path)
        if path[0] not in ("crate", "self", "super") and (*module, path[0]) not in self.files:
            return None
        while rest and (rest[0] in ("crate", "self", "super") or (*at, rest[0]) in self.files):
            part = rest.pop(0)
            at = at[:-1] if part == "super" else at if part in ("crate", "self") else (*at, part)
        if rest and depth < 8 and rest[0] in self.passed_on.get(at, {}):
            return self.resolve(at, self.passed_on[at][rest[0]], depth + 1) or at
        return at if at in self.files else None

    def circles(self) -> set[tuple[Module, ...]]:
        """Return the largest sets of modules in which each uses all others, directly or through others."""
        reached: dict[Module, set[Module]] = {}
        for module in self.files:
            reached[module], queue = set(), [module]
            while queue:
                new = self.uses[queue.pop()] - reached[module]
                reached[module] |= new
                queue += new
        return {tuple(sorted(m for m in reached[module] if module in reached[m])) for module in self.files}


def chosen(path: Path) -> list[str]:
    """Return the constants of a file, without its tests, whose numbers are decimal."""
    code = re.sub(r'//.*|"[^"\n]*"', "", TESTS.sub("", path.read_text()))
    found = CONSTANT.findall(code)
    return [name for name, value in found if {*DECIMAL.findall(value)} - {"0", "1", "2"}]


def counters(crate: Crate) -> Iterator[tuple[str, Path, list[Path]]]:
    """Yield each struct of counters, the file that declares it, and those that name too many of its counters."""
    for module, path in crate.files.items():
        for struct, fields in COUNTERS.findall(crate.code[module]):
            names = re.findall(r"\bpub (\w+):", fields)
            named = {m: sum(bool(re.search(rf"\b{name}\b", code)) for name in names) for m, code in crate.code.items()}
            yield struct, path, [crate.files[m] for m, count in named.items() if count > MOST_NAMED and m != module]


def unsafe(crate: Crate, root: Path) -> Iterator[str]:
    """Yield a line for each file with unsafe code where none may be, and for each place of UNSAFE without any."""
    unused = {f"{folder}/{file}" for folder, files in UNSAFE.items() for file in files.split() or ("",)}
    for module, path in crate.files.items():
        name, code = path.relative_to(root).as_posix(), re.sub(r'"[^"\n]*"', "", crate.code[module])
        if path.stem not in ("tests", "models") and re.search(r"\bunsafe\b", code):
            folders = {f"{parent.as_posix()}/" for parent in Path(name).parents if UNSAFE.get(parent.as_posix()) == ""}
            if not folders and path.name not in UNSAFE.get(Path(name).parent.as_posix(), "").split():
                yield f"{name} has unsafe code, which may only be where UNSAFE says"
            unused -= {name, *folders}
        if re.search(r"SAFETY:.*\b(as|see) above\b", path.read_text()):
            yield f"{name} has a SAFETY comment that refers to another: each names its invariant"
    for place in sorted(unused):
        if (root / place).exists():
            yield f"{place} has no unsafe code, and needs no place in UNSAFE"


def under_locks(code: str) -> Iterator[str]:
    """Yield each line that takes a lock under which an object of Python's is made or ends."""
    for taken in LOCKED.finditer(code):
        indent, guard, rest = taken.groups()
        if guard and rest == ";":
            end = rf"^{indent}drop\({guard}\)"
        else:
            end = rf"^{indent}\}}" if BLOCK.match(taken[0]) else r"[;{]$"
        # At the latest where the block around it ends.
        last = re.compile(rf"{end}|^(?! *$|{indent})", re.MULTILINE).search(code, taken.start(3))
        locked = code[taken.start(3) : last.start() if last else None]
        *_, signature = SIGNATURE.finditer(code, 0, taken.start())
        if MAKES.search(locked) or ("?" in locked and "PyResult" in signature[0]) or ENDS.match(taken[0]):
            yield taken[0].strip()


def shared_names(crate: Crate) -> dict[str, list[Path]]:
    """Return the names that types in several files have, with the files. In one file it is one type, for each `cfg`."""
    files: dict[str, list[Path]] = {}
    for module, path in crate.files.items():
        if path.stem not in ("tests", "models"):
            for name in sorted({*TYPE.findall(crate.code[module])} - {*SHARED_NAMES}):
                files.setdefault(name, []).append(path)
    return {name: paths for name, paths in sorted(files.items()) if len(paths) > 1}


def broken(root: Path) -> Iterator[str]:
    """Yield a line for everything that breaks a rule."""
    crate = Crate(root / "src")
    names = {module: path.relative_to(root).as_posix() for module, path in crate.files.items()}
    circles = sorted(crate.circles())
    for folder, most in CIRCLES.items():
        for circle in circles:
            inside = [names[module] for module in circle if names[module].startswith(f"{folder}/")]
            if len(inside) > most:
                yield f"{folder}: at most {most} files may be one circle, and {len(inside)} are: {', '.join(inside)}"
    for folder, arrows in ARROWS.items():
        rows = enumerate(arrows.split(" -> "))
        places = {room: (number, "&" in row) for number, row in rows for room in re.split(", | & ", row)}
        room_of = {m: n.split("/")[folder.count("/") + 1] for m, n in names.items() if n.startswith(f"{folder}/")}
        for room in sorted({room for room in room_of.values() if not room.endswith(".rs")} - {*places}):
            yield f"{folder}: the folder {room} has no place in ARROWS"
        for module, used in sorted((m, used) for m in room_of for used in crate.uses[m] & {*room_of}):
            one, other = (room_of[each].removesuffix(".rs") for each in (module, used))
            if one == other or not {one, other} <= {*places} or places[one] < places[other]:
                continue
            is_joined = places[one] == places[other] and places[one][1]
            if not is_joined and used not in crate.given.get(module, ()):
                yield f"{names[module]} uses {names[used]}: {one} may not use {other}"
    for keeper in sorted(crate.given):
        if names[keeper] not in KEEPERS:
            yield f"{names[keeper]} keeps a function that is given to it: call what is below, or have it in KEEPERS"
    for name, paths in shared_names(crate).items():
        found = ", ".join(path.relative_to(root).as_posix() for path in paths)
        yield f"{name} is the name of several types, and each needs its own: {found}"
    yield from unsafe(crate, root)
    for module in (module for module in names if module[0:1] == ("python",)):
        for line in under_locks(crate.code[module]):
            yield f"{names[module]} makes or ends an object of Python's under a lock: {line}"
    for struct, path, listing in counters(crate):
        for name in sorted({each.relative_to(root).as_posix() for each in listing} - {*COUNT}):
            yield f"{name} names the counters of {struct}, which are listed in {path.relative_to(root)} alone"
    table = root / TUNING
    if len(constants := CONSTANT.findall(table.read_text())) > MOST_CHOSEN:
        yield f"{TUNING}: at most {MOST_CHOSEN} numbers may be chosen, and {len(constants)} are"
    for path in sorted(table.parent.rglob("*.rs")):
        if path != table and path.stem not in ("tests", "models"):
            for name in chosen(path):
                yield f"{path.relative_to(root)}: {name} is chosen, and belongs in {TUNING}, or is hexadecimal"


if __name__ == "__main__":
    lines = list(broken(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]))
    print("\n".join(lines) or "the layout is kept")
    sys.exit(bool(lines))
