"""Code that nobody audits runs in the worker that judges it: a fault of it costs its case alone, and is placed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.hardware import memory
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.record.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.workers import WorkerPool
from pyperf_suite.user_kernels import declared
from pyperf_suite.user_kernels.declared import parameters_of
from tests.core.user_kernels.test_user_kernel import WRONG, kernel_of, named

SHORT = Effort(
    SteadyRule(min_time_s=0.0, time_cap_s=0.02),
    StopRule(relative_half_width=0.5, min_samples=3, min_effective_samples=1, max_samples=20, time_cap_s=0.05),
)

Measure = Callable[..., dict[str, Any]]

# Kernels that end the worker without a stack.
ENDS_THE_PROCESS = ("ends its process", "kills itself", "forks")


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measure]:
    """Write a file and measure cases of it in one worker, one after the other; the answer of each."""
    monkeypatch.setenv(declared.ROOT_VARIABLE, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with WorkerPool(Device("cpu"), 20.0) as pool:

        def measure(launch: str, before: str = "", name: str = "bench.py", deadline_s: float = 20.0) -> dict[str, Any]:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(kernel_of(launch, before))
            pool._deadline_s = deadline_s
            return pool.measure(0, Case(f"{name}:kernel", parameters_of(())(), named(launch)), SHORT)

        yield measure


@pytest.mark.slow
@pytest.mark.parametrize("kernel", WRONG)
def test_a_wrong_kernel_costs_its_case_and_says_where(measured: Measure, kernel: str) -> None:
    body, words = WRONG[kernel]
    launch = "function, suite.rand(64), reference=lambda x: x.astype('float64') + 1"
    found = measured(launch, f"def function(x):\n    {body}\n")
    assert found["outcome"] == "failed"
    assert words in found["reason"]
    assert kernel in ENDS_THE_PROCESS or "bench.py:3" in found["reason"] or "bench.py:4" in found["reason"]
    assert measured("lambda x: x + 1, suite.rand(8)", name="next.py")["outcome"] == "ok"


def test_a_copy_that_a_file_forks_is_seen(measured: Measure) -> None:
    launch = "function, suite.rand(64), reference=lambda x: x + 1.0"
    found = measured(launch, "import os\nbegun = os.fork()\ndef function(x):\n    return x + 1\n")
    assert found["outcome"] == "failed"
    assert "forked" in found["reason"]


@pytest.mark.parametrize("ending", ["sys.exit()", "raise KeyboardInterrupt"])
def test_a_copy_that_a_kernel_forks_does_not_end_in_the_place_of_the_worker(measured: Measure, ending: str) -> None:
    before = (
        "import os, sys\ndef function(x):\n    copy = os.fork()\n"
        f"    if not copy:\n        {ending}\n    os.waitpid(copy, 0)\n    return x + 1\n"
    )
    found = measured("function, suite.rand(64), reference=lambda x: x + 1.0", before)
    assert found["outcome"] == "failed"
    assert "forked" in found["reason"]


def test_a_file_may_set_the_default_dtype(measured: Measure) -> None:
    before = "import torch\ntorch.set_default_dtype(torch.float64)\n"
    found = measured("lambda x: x + 1, suite.rand(64), reference=lambda x: x.double() + 1", before)
    assert found["outcome"] == "ok", found["reason"]


def test_last_words_are_those_of_the_case_that_ended_its_process(measured: Measure) -> None:
    before = "import os\nTIMES = []\ndef function(x):\n    if TIMES:\n        os._exit(7)\n    TIMES.append(1)\n"
    first, second = (measured("function, suite.rand(64)", f"{before}    raise ValueError('first')\n") for _ in "12")
    assert "raised ValueError: first" in first["reason"]
    assert "(exit code 7)" in second["reason"]
    assert "first" not in second["reason"]


def test_two_files_have_modules_of_one_name_in_processes_of_their_own(measured: Measure, tmp_path: Path) -> None:
    for name, number in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "helpers.py").write_text(f"NUMBER = {number}\n")
        launch = f"lambda x: x + NUMBER, suite.rand(8), reference=lambda x: x + {number}.0"
        found = measured(launch, "from helpers import NUMBER\n", f"{name}/bench.py")
        assert found["outcome"] == "ok", found["reason"]


def test_a_file_that_cannot_be_imported_is_named_with_its_line(measured: Measure) -> None:
    found = measured("len, 'abc'", "import no_such_module\n")
    assert found["outcome"] == "failed"
    assert "bench.py:3: bench.py raised ModuleNotFoundError" in found["reason"]


def test_functions_of_numpy_that_a_file_replaces_are_named(measured: Measure) -> None:
    before = "np.exp = lambda x, exp=np.exp: exp(x)\n"
    found = measured("lambda x: np.exp(x), suite.rand(8), reference=lambda x: np.exp(x.astype(float))", before)
    assert found["verification"]["reason"] == "replaced function"
    assert "numpy.exp" in found["reason"]


@pytest.mark.slow
def test_a_kernel_that_hangs_is_ended_with_the_line_it_hangs_in(measured: Measure) -> None:
    before = "import time\ndef function(x):\n    while True:\n        time.sleep(0.01)\n"
    found = measured("function, suite.rand(64), reference=lambda x: x", before, deadline_s=3.0)
    assert found["outcome"] == "failed"
    assert "bench.py:5" in found["reason"] or "bench.py:6" in found["reason"], found["reason"]


@pytest.mark.slow
def test_a_kernel_that_takes_all_memory_is_ended(measured: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "limit_bytes", lambda: 400 << 20)
    before = "def function(x):\n    held = []\n    while True:\n        held.append(np.ones(1 << 20))\n"
    found = measured("function, suite.rand(64), reference=lambda x: x", before)
    assert found["outcome"] == "failed"
    assert "GB of memory" in found["reason"]
