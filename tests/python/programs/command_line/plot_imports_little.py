"""Drawing a page imports none of the packages that render it, which a process of its own does."""

import sys

from gpupool.__main__ import main

if __name__ == "__main__":
    snapshot, picture = sys.argv[1:]
    assert main(["plot", snapshot, "-o", picture]) == 0, "the page was not drawn"
    imported = {"vl_convert", "numpy"} & sys.modules.keys()
    assert not imported, f"a page imports {imported}"
