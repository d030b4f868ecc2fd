"""A second interpreter in a process is refused, and the first goes on."""

import sys

import gpupool

if sys.version_info >= (3, 13):
    import _interpreters as interpreters
else:
    import _xxsubinterpreters as interpreters


def main():
    other = interpreters.create()
    # It answers with the failure, or raises it, as the version has it.
    try:
        failed = interpreters.run_string(other, "import gpupool")
    except Exception as error:
        failed = error
    assert "subinterpreter" in str(failed), f"the import in a second interpreter ended with: {failed}"
    assert gpupool.simulated.handle() != 0, "the first interpreter gets no handle"
    interpreters.destroy(other)
