"""What a file is that was taken for a trace file, and which file to take in its place."""

import codecs

from gpupool._traces.event import TraceError

# What the first bytes of files are, of those that people have beside their trace files.
_KINDS = {
    b"\x89PNG": "a PNG picture",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a ZIP archive, as torch.save() writes",
    b"SQLite format 3": "an SQLite database, as Nsight Systems exports",
    b"\x7fELF": "a program or a library",
    b"\x1f\x8b": "packed with gzip twice (unpack it once with gunzip)",
    b"BZh": "packed with bzip2 (unpack it with bunzip2)",
    b"\xfd7zXZ": "packed with xz (unpack it with unxz)",
    b"\x28\xb5\x2f\xfd": "packed with zstd (unpack it with unzstd)",
    b"<": "HTML or XML, such as a page of a viewer",
    b"{": "JSON",
    b"[": "JSON",
}
# What is in a Chrome trace, not far from its start.
_CHROME = (b'"traceEvents"', b'"ph"')


def kind_of(start: bytes) -> str | None:
    """Return what a file is that begins so; None if it may be a log."""
    start = start.removeprefix(codecs.BOM_UTF8).lstrip()
    if not start:
        return "an empty file"
    kind = next((kind for begin, kind in _KINDS.items() if start.startswith(begin)), None)
    if kind == "JSON" and any(part in start for part in _CHROME):
        return "a Chrome trace, as torch.profiler writes"
    if kind is None and b"\0" in start.partition(b"\n")[0]:
        return "a binary file"
    return kind


def error(path: str, kind: str) -> TraceError:
    """Return the error for a file of another kind."""
    return TraceError(
        f"{path}: {kind}; take a memory snapshot, which gpupool run --snapshot FILE, gpupool.dump_snapshot() or, after "
        "_record_memory_history(), torch.cuda.memory._dump_snapshot() writes, or a CSV log of RMM's "
        "LoggingResourceAdaptor, whose first line is Thread,Time,Action,Pointer,Size,Stream"
    )
