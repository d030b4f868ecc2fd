"""The command line: ``gpupool info``, ``demo``, ``replay``, ``plot`` and ``run``."""
