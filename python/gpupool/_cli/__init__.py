"""The command line: ``gpupool info``, ``demo``, ``replay`` and ``plot``."""
