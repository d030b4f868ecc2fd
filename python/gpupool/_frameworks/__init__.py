"""The parts that gpupool's modules for frameworks share, or import only when they are used."""
