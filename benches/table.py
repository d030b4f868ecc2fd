"""Prints the README's table from a results file of benches/peers.py: python benches/table.py FILE"""

import json
import sys
from pathlib import Path

LIBRARIES = {
    "cudnn": "cuDNN",
    "cusparse": "cuSPARSE",
    "cudss": "cuDSS",
    "cublas": "cuBLAS",
    "cublaslt": "cuBLASLt",
    "cusolver": "cuSOLVER",
}
CUPY = {"cusparse": "cupy get_cusparse_handle", "cublas": "cupy get_cublas_handle"}
TORCH = {"cublas": "torch current_blas_handle"}


def figure(figures: dict[str, float], name: str | None) -> str:
    """A figure for a cell, or nothing."""
    return f"{figures[name]:.0f}" if name in figures else ""


def main() -> None:
    """Print the table."""
    results = json.loads(Path(sys.argv[1]).read_text())
    rust, python = results.get("rust_ns", {}), results["python_ns"]
    torch = results.get("torch_cpp_ns", {})
    print("| this thread's handle, ns | gpupool, Rust | PyTorch, C++ | gpupool, Python | CuPy | PyTorch, Python |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, title in LIBRARIES.items():
        cells = [
            figure(rust, f"{name}/handle(stream)"),
            figure(torch, name),
            figure(python, f"gpupool {name} handle()"),
            figure(python, CUPY.get(name)),
            figure(python, TORCH.get(name)),
        ]
        print(f"| {title} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
