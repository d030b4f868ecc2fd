"""Threads that come one after the other need few handles.

On Python 3.12 and older a joined thread may still be on its way out, so the program asks how many handles there were at
most, and a hundred threads one after the other never need a hundred.
"""

import threading

import gpupool


def main():
    for _ in range(100):
        thread = threading.Thread(target=gpupool.simulated.handle)
        thread.start()
        thread.join()
    stats = gpupool.simulated.stats()
    assert stats.created < 20, f"a hundred threads needed {stats.created} handles"
    assert stats.misses == 100, f"{stats.misses} of a hundred first requests missed"
    assert stats.hand_overs + stats.created == 100, f"a handle came from elsewhere: {stats}"


if __name__ == "__main__":
    main()
