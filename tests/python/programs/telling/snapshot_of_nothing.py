"""Recording, and a snapshot of what was recorded, ask for no device before there is anything."""

import gpupool


def main():
    gpupool.record_memory_history()
    snapshot = gpupool.memory_snapshot()
    assert snapshot["device_traces"] == [], f"there are traces of devices: {snapshot['device_traces']}"
    assert snapshot["segments"] == [], f"there are segments: {snapshot['segments']}"
    gpupool.record_memory_history(None)


if __name__ == "__main__":
    main()
