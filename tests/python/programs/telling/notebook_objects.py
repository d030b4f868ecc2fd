"""What a notebook is given of objects where there is nothing to tell, or where telling fails."""

import sys

import gpupool
from forking import in_child


def are_imported_when_one_is_shown():
    pool = gpupool.MemPool()
    repr(pool)
    assert "gpupool._notebook" not in sys.modules, "gpupool imports it before a notebook asks"
    assert "gpupool.MemPool" in pool._repr_html_()
    assert "gpupool._notebook" in sys.modules


def of_a_forked_child():
    pool = gpupool.MemPool()
    buffer_range = pool.reserve_range(4 << 20)
    summary, stats = gpupool.memory_summary(), gpupool.memory_stats()

    def show():
        assert "gpupool.MemPool" in pool._repr_html_()
        assert "live" not in pool._repr_html_()
        assert "simulated" in gpupool.simulated._repr_html_()
        assert "created" not in gpupool.simulated._repr_html_()
        assert "of the parent process" in buffer_range._repr_html_()
        assert "now" in summary._repr_html_()
        assert "live" in stats._repr_html_()
        assert "forked after" in gpupool.info()._repr_html_()

    in_child(show)


def are_those_of_their_reprs_when_html_fails():
    pool, stats = gpupool.MemPool(), gpupool.memory_stats()
    # A package that cannot be imported.
    sys.modules["gpupool._notebook.facts"] = None
    assert pool._repr_html_() is None
    assert stats._repr_html_() is None
    assert gpupool.simulated._repr_html_() is None
    assert pool.reserve_range(2 << 20)._repr_html_() is None


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
