"""A process ends cleanly with a solver of nvmath's on a lent handle, whichever package it imported first."""

import importlib
import logging
import sys

# What lives until the interpreter lets it go.
alive = []


def main(order):
    # nvmath warns on stderr of a library that would make it quicker.
    logging.disable(logging.WARNING)
    packages = {name: importlib.import_module(name) for name in order.split(",")}
    gpupool = packages["gpupool"]
    solver_of = importlib.import_module("nvmath.sparse.advanced").DirectSolver
    poisson = importlib.import_module("equations").poisson

    gpupool.cudss.set_mem_pool(gpupool.MemPool())
    lent = gpupool.nvmath.options(gpupool.cudss)
    a, b = poisson(32)
    solver = solver_of(a, b, options=lent.__enter__())
    solver.plan()
    solver.factorize()
    error = float(abs(a @ solver.solve() - b).max())
    assert error < 1e-10, f"the solution is {error} off"
    alive.extend([lent, a, b, solver])


if __name__ == "__main__":
    main(*sys.argv[1:])
