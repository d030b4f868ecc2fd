"""Recordings of programs' allocations: RMM's logs, and memory snapshots of PyTorch and gpupool."""

from gpupool._trace.event import PoolId, TraceError
from gpupool._trace.snapshot import HandleEvent
from gpupool._trace.trace import FREE, Recording, Trace, read, recording

__all__ = ["FREE", "HandleEvent", "PoolId", "Recording", "Trace", "TraceError", "read", "recording"]
