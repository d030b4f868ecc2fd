"""Trace files, which are logs of RMM and memory snapshots of PyTorch or gpupool: written, read and replayed."""
