"""Prints the README's tables from a results file of benches/peers.py: python benches/table.py FILE"""

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


def checkouts(results: dict) -> None:
    """What getting a handle costs that the thread has already."""
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


def beyond(figures: dict[str, float], name: str, nothing: str) -> float | None:
    """A figure without what threads take that do nothing."""
    return figures[name] - figures[nothing] if name in figures else None


def compared(ours: float | None, *peers: float | None) -> list[str]:
    """The cells for our figure, for the peers', and for how many times ours each of those is."""
    cells = ["" if each is None else f"{each:.0f}" for each in (ours, *peers)]
    # Where a figure is less than the noise, there is nothing to compare.
    ratios = [f"{peer / ours:.1f}" if ours and peer and min(ours, peer) > 0 else "" for peer in peers]
    return cells + ratios


def churn(results: dict) -> None:
    """What threads take that ask once and end, beyond those that do nothing."""
    rust, torch = results.get("rust_ns", {}), results.get("torch_cpp_churn_ns", {})
    print("| a thread that asks once and ends, ns | gpupool, Rust | PyTorch, C++ | PyTorch / gpupool |")
    print("| --- | --- | --- | --- |")
    for name, title in LIBRARIES.items():
        figures = [beyond(each, f"churn/{name}, inside", "churn/nothing, inside") for each in (rust, torch)]
        print(f"| {title} | {' | '.join(compared(*figures))} |")
    print()
    python = {name: figures["rush"] for name, figures in results["python_churn_ns"].items()}
    print("| each of 16 such threads at once, Python | gpupool | PyTorch | CuPy | PyTorch / gpupool | CuPy / gpupool |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in ("cusparse", "cublas", "cusolver"):
        figures = [beyond(python, f"{peer} {name}", "nothing") for peer in ("gpupool", "torch", "cupy")]
        print(f"| {LIBRARIES[name]} | {' | '.join(compared(*figures))} |")


def main() -> None:
    """Print the tables."""
    results = json.loads(Path(sys.argv[1]).read_text())
    checkouts(results)
    # Older files lack it.
    if "python_churn_ns" in results:
        print()
        churn(results)


if __name__ == "__main__":
    main()
