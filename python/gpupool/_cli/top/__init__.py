"""The command ``gpupool top``: who holds the memory of each device, as a live table, as text, or as JSON."""
