"""The command line: ``gpupool info``, ``demo``, ``replay``, ``plot``, ``top`` and ``run``."""
