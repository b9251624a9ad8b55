"""Wrong results injected into the native product end as failed; tools/wrong_launches.py counts in how many runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.workloads import operator

TOOL = Path(__file__).parents[2] / "tools" / "wrong_launches.py"
SETS = 8

# A visit that does not converge, so that a thousand launches are checked however calm the machine is.
LONG = Effort(SteadyRule(min_time_s=0.1, time_cap_s=0.2), StopRule(relative_half_width=1e-9, time_cap_s=0.4))


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, and a rotation through eight sets whatever this machine's caches."""
    pytest.importorskip("pyperf_suite._native")
    monkeypatch.setattr(operator, "sets_to_rotate", lambda set_bytes, device: (SETS, "cold_l2"))
    spec = importlib.util.spec_from_file_location("wrong_launches", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("wrong", range(SETS))
def test_a_set_on_which_the_product_is_always_wrong_fails_before_timing(tool: ModuleType, wrong: int) -> None:
    answer, _ = tool.visit(lambda _launch, at: at == wrong)
    assert answer["outcome"] == "failed"
    assert answer["reason"].startswith("Wrong result before timing")
    assert not answer["verification"]["passed"]
    assert answer["verification"]["worst_at"] == [11, 13]


@pytest.mark.parametrize("seed", range(3))
def test_one_wrong_launch_in_a_hundred_fails(tool: ModuleType, seed: int) -> None:
    answer, _ = tool.visit(tool.one_in(100, seed), LONG)
    assert answer["outcome"] == "failed"
    assert answer["verification"]["worst_at"] == [11, 13]


def test_launches_that_go_wrong_after_a_while_fail_while_they_are_timed(tool: ModuleType) -> None:
    answer, _ = tool.visit(lambda launch, _set: launch > 500, LONG)
    assert answer["outcome"] == "failed"
    assert answer["reason"].startswith("Wrong result while it was timed: operand set ")


def test_a_right_product_passes_and_its_record_says_which_rate_of_errors_that_excludes(tool: ModuleType) -> None:
    answer, launches = tool.visit(lambda _launch, _set: False)
    assert answer["outcome"] == "ok"
    verification = answer["verification"]
    assert verification["passed"]
    assert verification["sets"] == SETS
    assert verification["bitwise"]
    assert verification["references"] == ["host"]
    checked, bound = verification["launches_checked"], verification["excludes_errors_in_one_of"]
    assert 3 * SETS < checked < launches
    assert (1 - 1 / bound) ** checked <= 0.05 < (1 - 1 / (bound + 1)) ** checked
