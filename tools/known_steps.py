"""Functions of numpy and scipy that became faster or slower between two releases, and others that did not.

Run as a program it has `pyperf-suite ab` compare all of them and prints a table of verdicts; docs/known_steps.md is
one. The kernels are written as any user's: what an arm's environment must have is what they import.

    python tools/known_steps.py [WORD ...]      # only those whose kernel or releases hold a word
"""

# ruff: noqa: D103 - what a kernel is stands in its launch
from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

import pyperf_suite as suite

MARGIN = "5%"
NUMPY_1_25 = "https://numpy.org/doc/stable/release/1.25.0-notes.html"
NUMPY_2_0 = "https://numpy.org/doc/stable/release/2.0.0-notes.html"
NUMPY_2_3 = "https://numpy.org/doc/stable/release/2.3.0-notes.html"
SCIPY_1_10 = "https://docs.scipy.org/doc/scipy/release/1.10.0-notes.html"
SCIPY_1_12 = "https://docs.scipy.org/doc/scipy/release/1.12.0-notes.html"
SCIPY_1_14 = "https://docs.scipy.org/doc/scipy/release/1.14.0-notes.html"


@suite.kernel(dtype=("float64", "float32"))
def sort(dtype):
    import numpy as np

    return suite.launch(np.sort, suite.rand(10_000, dtype=dtype))


@suite.kernel(n=10_000)
def argsort(n):
    import numpy as np

    return suite.launch(np.argsort, suite.rand(n, dtype="float64"))


@suite.kernel(n=10_000)
def add_at(n):
    import numpy as np

    return suite.launch(np.add.at, suite.zeros(100, dtype="float64"), suite.randint(0, 100, n), 1.0, modifies=0)


@suite.kernel(n=2_000)
def char_find(n):
    import numpy as np

    return suite.launch(np.char.find, _words(n), "def")


@suite.kernel(n=2_000)
def char_strip(n):
    import numpy as np

    return suite.launch(np.char.strip, _words(n))


@suite.kernel(n=2_000)
def char_add(n):
    import numpy as np

    return suite.launch(np.char.add, _words(n), "x")


@suite.kernel(n=100_000)
def unique(n):
    import numpy as np

    return suite.launch(np.unique, suite.randint(0, 500, n))


# Larger results cross malloc's threshold for memory of its own, and then page faults are what is timed.
@suite.kernel(n=4_096)
def fft(n):
    import numpy as np

    return suite.launch(np.fft.fft, suite.rand(n, dtype="float64"))


@suite.kernel(n=10_000)
def cumsum(n):
    import numpy as np

    return suite.launch(np.cumsum, suite.rand(n, dtype="float64"))


@suite.kernel(n=10_000)
def histogram(n):
    import numpy as np

    return suite.launch(_histogram, suite.rand(n, dtype="float64"), np.linspace(0, 1, 51))


@suite.kernel(n=200)
def correlation(n):
    from scipy.spatial import distance

    return suite.launch(distance.correlation, suite.rand(n, dtype="float64"), suite.rand(n, dtype="float64"))


@suite.kernel(rows=60, columns=40)
def nnls(rows, columns):
    from scipy import optimize

    return suite.launch(optimize.nnls, suite.rand(rows, columns, dtype="float64"), suite.rand(rows, dtype="float64"))


@suite.kernel(n=500)
def spsolve_triangular(n):
    from scipy import sparse
    from scipy.sparse.linalg import spsolve_triangular as solve

    lower = sparse.diags([4.0, 1.0, 1.0], [0, -1, -7], shape=(n, n)).tocsr()
    return suite.launch(lambda right: solve(lower, right), suite.rand(n, dtype="float64"))


@suite.kernel(n=4_000)
def medfilt(n):
    from scipy import signal

    return suite.launch(signal.medfilt, suite.rand(n, dtype="float64"), 5)


@suite.kernel(n=5)
def skewnorm_cdf(n):
    from scipy import stats

    return suite.launch(stats.skewnorm.cdf, suite.randn(n, dtype="float64"), 2.0)


@suite.kernel(n=2_000)
def sparse_norm(n):
    from scipy import sparse
    from scipy.sparse.linalg import norm

    return suite.launch(norm, sparse.random(n, n, 0.002, format="csr", random_state=1))


@suite.kernel(n=500)
def dijkstra_star(n):
    import numpy as np
    from scipy import sparse
    from scipy.sparse import csgraph

    rays = np.zeros(n - 1, dtype=np.int32), np.arange(1, n, dtype=np.int32)
    star = sparse.csr_matrix((np.ones(n - 1), rays), shape=(n, n))
    return suite.launch(csgraph.dijkstra, star, indices=0)


@suite.kernel(nodes=200, probability=0.05)
def triangles(nodes, probability):
    import networkx

    graph = networkx.gnp_random_graph(nodes, probability, seed=1)
    return suite.launch(lambda graph: sum(networkx.triangles(graph).values()), graph)


def _words(n):
    import numpy as np

    return np.array([f"abc def {number}" for number in range(n)])


def _histogram(values, edges):
    import numpy as np

    return np.histogram(values, edges)[0]


class Pair(NamedTuple):
    """Two releases, a kernel of this file, what its makers say became of it, and where; "" for nothing."""

    old: str
    new: str
    kernel: str
    expected: str
    source: str = ""


PAIRS = (
    Pair("numpy==1.24.4", "numpy==1.25.2", "add_at", "faster", NUMPY_1_25),
    Pair("numpy==1.26.4", "numpy==2.0.2", "sort", "faster", NUMPY_2_0),
    Pair("numpy==1.26.4", "numpy==2.0.2", "argsort", "faster", "https://github.com/numpy/numpy/pull/25610"),
    Pair("numpy==1.26.4", "numpy==2.0.2", "char_find", "faster", NUMPY_2_0),
    Pair("numpy==1.26.4", "numpy==2.0.2", "char_strip", "faster", NUMPY_2_0),
    Pair("numpy==1.26.4", "numpy==2.0.2", "char_add", "faster", NUMPY_2_0),
    Pair("numpy==2.2.6", "numpy==2.3.5", "unique", "faster", NUMPY_2_3),
    Pair("scipy==1.9.3 numpy==1.24.4", "scipy==1.10.1 numpy==1.24.4", "skewnorm_cdf", "faster", SCIPY_1_10),
    Pair("scipy==1.9.3 numpy==1.24.4", "scipy==1.10.1 numpy==1.24.4", "sparse_norm", "faster", SCIPY_1_10),
    Pair("scipy==1.9.3 numpy==1.24.4", "scipy==1.10.1 numpy==1.24.4", "dijkstra_star", "faster", SCIPY_1_10),
    Pair("scipy==1.11.4 numpy==1.26.4", "scipy==1.12.0 numpy==1.26.4", "correlation", "faster", SCIPY_1_12),
    Pair(
        "scipy==1.11.4 numpy==1.26.4", "scipy==1.12.0 numpy==1.26.4", "nnls", "slower",
        "https://github.com/scipy/scipy/issues/20984",
    ),
    Pair("scipy==1.13.1 numpy==1.26.4", "scipy==1.14.1 numpy==1.26.4", "spsolve_triangular", "faster", SCIPY_1_14),
    Pair("networkx==3.1", "networkx==3.3", "triangles", "faster", "https://github.com/networkx/networkx/pull/6258"),
    Pair("numpy==1.25.1", "numpy==1.25.2", "cumsum", ""),
    Pair("numpy==1.25.1", "numpy==1.25.2", "add_at", ""),
    Pair("numpy==1.26.3", "numpy==1.26.4", "argsort", ""),
    Pair("numpy==1.26.3", "numpy==1.26.4", "char_find", ""),
    Pair("numpy==1.26.3", "numpy==1.26.4", "cumsum", ""),
    Pair("numpy==2.0.1", "numpy==2.0.2", "sort", ""),
    Pair("numpy==2.0.1", "numpy==2.0.2", "fft", ""),
    Pair("numpy==2.2.5", "numpy==2.2.6", "unique", ""),
    Pair("numpy==2.2.5", "numpy==2.2.6", "histogram", ""),
    Pair("scipy==1.11.3 numpy==1.26.4", "scipy==1.11.4 numpy==1.26.4", "nnls", ""),
    Pair("scipy==1.11.3 numpy==1.26.4", "scipy==1.11.4 numpy==1.26.4", "medfilt", ""),
    Pair("scipy==1.14.0 numpy==1.26.4", "scipy==1.14.1 numpy==1.26.4", "spsolve_triangular", ""),
)  # fmt: skip


def compared(pair: Pair) -> list[dict]:
    """The findings of `ab`: one for each case of the kernel."""
    words = ["--old", pair.old, "--new", pair.new, f"{__file__}:{pair.kernel}", "--margin", MARGIN]
    command = [sys.executable, "-m", "pyperf_suite", "ab", *words, "--json", "--budget", "120"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if not done.stdout:
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}")
    return json.loads(done.stdout)["findings"]


def line(pair: Pair, finding: dict) -> str:
    """A line of the table."""
    ratio = finding["ratio"]
    reported = finding["sentence"]
    if ratio:
        reported = "{:+.1f} % [{:+.1f}, {:+.1f}]".format(
            *(100 * (ratio[each] - 1) for each in ("value", "low", "high"))
        )
    expected = f"[{pair.expected}]({pair.source})" if pair.source else "no step"
    cells = (
        pair.old,
        pair.new,
        finding["benchmark"],
        expected,
        finding["verdict"],
        reported,
        finding["details"]["pairs"],
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def main(words: list[str]) -> None:
    """Compare, and print each line of the table once it is there."""
    print("| old | new | benchmark | expected | verdict | change of time | pairs |\n" + "| --- " * 7 + "|", flush=True)
    for pair in PAIRS:
        if not words or any(word in f"{pair.kernel} {pair.old} {pair.new}" for word in words):
            for finding in compared(pair):
                print(line(pair, finding), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
