"""gpupool for programs that do not know of it: ``gpupool run``, and what ``GPUPOOL_ENABLE`` enables."""
