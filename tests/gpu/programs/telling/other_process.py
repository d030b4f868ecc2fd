"""Another process: it has 512 MiB of the device from when it says "ready" until it is sent a line."""

import sys

import cupy


def main():
    kept = cupy.cuda.alloc(512 << 20)
    cupy.cuda.Device().synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
    del kept


if __name__ == "__main__":
    main()
