#!/usr/bin/env bash
# Writes a program beside an aarch64 Python that runs it under emulation, with the libraries in ROOT, and prints its path.
# It takes that Python's place: in virtual environments, as sys.executable and in scripts. Usage:
# tests/package/emulate.sh PYTHON ROOT
set -euo pipefail
usage="usage: tests/package/emulate.sh PYTHON ROOT"
python=$(realpath "${1:?$usage}")
root=$(realpath "${2:?$usage}")
launcher=$(dirname "$python")/emulated-$(basename "$python")
# qemu keeps a record of each page of addresses that a program reserves, and gpupool reserves a terabyte where it gets one,
# 16 to replay traces: so there are 64 GiB in all, and devices of one. By its own name Python finds its environment.
cat >"$launcher" <<EOF
#!/bin/sh
GPUPOOL_HOST_MEMORY=\${GPUPOOL_HOST_MEMORY:-1073741824} exec qemu-aarch64 -R 64G -L '$root' -0 "\$0" '$python' "\$@"
EOF
chmod +x "$launcher"
echo "$launcher"
