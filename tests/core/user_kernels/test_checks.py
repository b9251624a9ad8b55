"""Choice of the checked launches, the time that checks may take, and reading of a process's files."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pyperf_suite.errors import Failed
from pyperf_suite.measure.checks import WrongLaunch
from pyperf_suite.measure.verify import Verification
from pyperf_suite.user_kernels import checks as module
from pyperf_suite.user_kernels.api import USUAL
from pyperf_suite.user_kernels.arrays import POISON
from pyperf_suite.user_kernels.checks import PartStopwatch, UserChecks

RIGHT = Verification(True, "full", 0.0, 0.0, 0.0, (), "right")


class Launches:
    """Launches that take so long by a clock of their own, of which the share `reported` is told, and what was asked."""

    clock, sets, where, rounding = ("made up", 1e-8), 8, "bench.py:3", {}
    is_paired = is_random = restores = False
    released_s, work, kernel = 0.0, None, SimpleNamespace(path="cpu")

    def __init__(self, launch_s: float = 1e-3, check_s: float = 0.01, **fields: Any) -> None:
        self.launch_s, self.check_s, self.reported, self.now_s = launch_s, check_s, 1.0, 1000.0
        self.asked: list[tuple[Any, ...]] = []
        vars(self).update(fields)

    def time(self, first: int, samples: int, batch: int) -> tuple[list[float], float]:
        self.asked.append(("time", first, samples, batch))
        self.now_s += samples * batch * self.launch_s
        seconds = [self.reported * batch * self.launch_s] * samples
        return seconds, samples * batch * self.launch_s

    def refresh(self, index: int, kind: str = USUAL) -> bool:
        self.asked.append(("refresh", index, kind))
        return True

    def verify_last(self, index: int) -> Verification:
        self.asked.append(("verify", index))
        self.now_s += self.check_s
        return RIGHT

    def require_nothing_replaced(self) -> None:
        pass

    def fresh(self) -> bool:
        return True

    def other_inputs(self) -> list[str]:
        return ["sparse"]

    def launch(self, index: int) -> None:
        self.asked.append(("launch", index))

    def give_back(self, index: int) -> None:
        self.asked.append(("give back", index))

    def begin(self) -> None:
        self.asked.clear()

    def make(self) -> None:
        pass

    def fill(self, index: int, slot: int = -1) -> None:
        pass


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers below which chance was asked for one; it draws the largest."""
    limits: list[int] = []
    monkeypatch.setattr(module.secrets, "randbelow", lambda limit: limits.append(limit) or limit - 1)
    return limits


def checks_of(launches: Launches, **how: Any) -> UserChecks:
    """Checks of launches that were found right before timing; what was asked since is in `asked`."""
    checks = UserChecks(launches, **{"budget": module.AUDIT_BUDGET, **how})
    checks.clock = lambda: launches.now_s
    assert checks.before_timing() is RIGHT
    return checks


def block_of(checks: UserChecks, first: int, samples: int, batch: int) -> list[float]:
    """A block as the sampler asks for it."""
    return list(checks.checking(PartStopwatch(checks._launches), False).time(lambda _: None, first, samples, batch))


def test_before_timing_one_set_is_launched_on_two_inputs_and_on_each_of_another_kind() -> None:
    launches = Launches(begin=lambda: None)
    report = checks_of(launches).report()
    usual = [("refresh", 0, USUAL), ("time", 0, 1, 1), ("verify", 0), ("give back", 0)]
    other = [("refresh", 0, "sparse"), ("launch", 0), ("verify", 0), ("give back", 0)]
    assert launches.asked == [*usual, *usual, *other, ("refresh", 0, USUAL), ("give back", 0)]
    assert (report["launches_checked"], report["inputs_tried"]) == (3, [USUAL, "sparse"])


@pytest.mark.parametrize(("launch_s", "later_s", "parts"), [(6e-3, 3e-3, 3), (6e-3, 2e-3, 1), (4e-3, 3e-3, 1)])
def test_long_launches_have_fresh_inputs_each_until_they_take_half_as_long(launch_s, later_s, parts) -> None:
    launches = Launches(launch_s)
    checks = checks_of(launches)
    block_of(checks, 0, 1, 1)
    launches.launch_s = later_s
    block_of(checks, 0, 1, 1)
    launches.asked.clear()
    assert block_of(checks, 4, 3, 1) == [later_s] * 3
    timed = [asked for asked in launches.asked if asked[0] == "time"]
    assert timed == ([("time", index, 1, 1) for index in (4, 5, 6)] if parts == 3 else [("time", 4, 3, 1)])


def test_the_rest_of_a_block_follows_and_is_checked_as_long_as_there_is_time(monkeypatch) -> None:
    monkeypatch.setattr(module.secrets, "randbelow", lambda limit: min(2, limit - 1))
    launches = Launches(check_s=0.3)
    checks = checks_of(launches)
    launches.now_s += 10
    assert len(block_of(checks, 10, 5, 3)) == 5
    timed = [("refresh", 18, USUAL), ("time", 10, 3, 3), ("verify", 18), ("give back", 18), ("time", 19, 2, 3)]
    assert launches.asked == timed
    launches.now_s += 10
    launches.asked.clear()
    assert len(block_of(checks, 10, 4, 1)) == 4
    assert [asked for asked in launches.asked if asked[0] == "time"] == [("time", 10, 3, 1), ("time", 13, 1, 1)]


def test_launches_are_audited_by_an_eighth_of_the_time_until_there_are_enough() -> None:
    asked: list[int] = []
    launches = Launches(audit=lambda count: asked.append(count) or (count, None))
    checks_of(launches, budget=module.USUAL_BUDGET)._audit()
    assert asked == [6] * 42  # an eighth of 0.05 s holds 6 launches of a millisecond, and 250 are enough


@pytest.mark.parametrize(("wall_s", "reported_s", "passes"), [(1.0, 1.05, True), (1.0, 1.06, False), (4.0, 4.2, True)])
def test_reported_times_are_no_longer_than_what_passed_but_for_a_twentieth(wall_s, reported_s, passes) -> None:
    launches = Launches()
    checks = checks_of(launches)
    launches.time = lambda *_: ([reported_s], wall_s)
    if passes:
        assert block_of(checks, 0, 1, 1) == [reported_s]
    else:
        with pytest.raises(WrongLaunch, match=r"1\.06 s were reported for a part that took 1 s"):
            block_of(checks, 0, 1, 1)


def test_a_clock_that_reports_half_of_the_time_is_refused_after_seven_tries_and_two_thirds_are_enough(drawn) -> None:
    launches = Launches()
    checks = checks_of(launches)
    launches.asked.clear()
    launches.reported = 0.5
    with pytest.raises(WrongLaunch, match="make up 51 % of the time that passed at most"):
        checks._require_a_true_clock()
    # 5 ms hold five launches; four times as many in each try, until one lasts half a second.
    assert [asked[2] for asked in launches.asked] == [6, 24, 96, 384, 1536, 1536, 1536]
    launches.reported = 2 / 3
    checks._require_a_true_clock()


@pytest.mark.parametrize(("settling_s", "passes"), [(0.039, True), (0.041, False)])
def test_a_gpu_works_no_longer_than_its_events_report_over_six_tenths_and_5_ms(settling_s, passes) -> None:
    asked: list[int] = []
    launches = Launches(kernel=SimpleNamespace(path="gpu"), settling_s=lambda n: asked.append(n) or settling_s)
    checks = checks_of(launches)
    # 21 launches of 1 ms are 0.021 s, and 0.021 / 0.6 + 0.005 is 0.04.
    if passes:
        checks._require_a_true_clock()
    else:
        with pytest.raises(WrongLaunch, match=r"worked for 0\.041 s after 21 launches, whose events say 0\.021 s"):
            checks._require_a_true_clock()
    assert asked == [21] * 3


def test_what_is_faster_on_inputs_that_it_has_seen_is_refused(monkeypatch) -> None:
    filled: list[int] = []
    launches = Launches(fill=lambda index, made: filled.append(made))
    checks = checks_of(launches)
    monkeypatch.setattr(module.secrets, "randbelow", lambda limit: 0)  # the seen one comes first
    factors = itertools.cycle([1.0, 1.0, 1.5])
    times = launches.time
    launches.time = lambda *part: ([each * next(factors) for each in times(*part)[0]], 1.0)
    with pytest.raises(WrongLaunch, match=r"it is 1\.5 times as fast as on fresh inputs"):
        checks._require_that_it_computes()
    # One that is not counted and the seen one on what was made before, the fresh one on what was made last.
    assert filled == [-2, -2, -1] * 12


@pytest.mark.parametrize(("left_s", "passes"), [(1.0, True), (0.7, True), (0.5, False)])
def test_bursts_on_fresh_inputs_take_as_long_as_on_sets_that_were_left(monkeypatch, left_s, passes) -> None:
    monkeypatch.setattr(module, "PAIRED_BURST", 6)
    filled: list[int] = []
    launches = Launches(fill=lambda index, made=-1: filled.append(index))
    checks = checks_of(launches, budget=module.USUAL_BUDGET)
    times = launches.time

    def time(first: int, samples: int, batch: int) -> tuple[list[float], float]:
        seconds, wall_s = times(first, samples, batch)
        is_left = samples == 6 and filled != list(range(first, first + 6))
        filled.clear()
        return [each * (left_s if is_left else 1.0) for each in seconds], wall_s

    launches.time = time
    with nullcontext() if passes else pytest.raises(WrongLaunch, match=r"left as they were it is 2\.0 times as fast"):
        checks._require_that_it_computes()
    bursts = [asked for asked in launches.asked if asked[:1] == ("time",) and asked[2] == 6]
    assert len(bursts) == (8 if left_s == 1.0 else 24 if not passes else 120), "four pairs, twelve, or sixty"


def array(dtype: str = "float32", shape: tuple[int, ...] = (2,), **fields: Any) -> dict[str, Any]:
    size_bytes = int(np.prod(shape)) * module.stored_type(dtype).itemsize
    return {"kind": "array", "dtype": dtype, "shape": shape, "offset": 0, "bytes": size_bytes, **fields}


@pytest.fixture
def written(tmp_path):
    """Writes a result as a process does: a tree, and the bytes of its arrays; returns its path."""

    def write(tree: Any, content: bytes = bytes(16)) -> str:
        (tmp_path / "result").write_bytes(content)
        (tmp_path / "result.json").write_text(tree if isinstance(tree, str) else json.dumps(tree))
        return str(tmp_path / "result")

    return write


@pytest.mark.parametrize(
    "tree",
    [
        *("", "[]", "{", "7", "[" * 100_000),
        *({"kind": "plain"}, {"kind": "object", "value": 1}, {"kind": "tuple", "items": [{"kind": "plain"}]}),
        *(array(offset=offset) for offset in (-1, 9)),
        *(array(bytes=7), array(shape=(-2,), bytes=-8), array() | {"dtype": "object"}, array() | {"dtype": "no"}),
    ],
    ids=lambda tree: str(tree)[:40],
)
def test_a_result_that_is_none_is_refused_whatever_a_process_wrote(written, tree) -> None:
    with pytest.raises(Failed, match="wrote a result that cannot be read"):
        module.read_tree(written(tree))


def test_arrays_are_read_where_they_lie_and_8_and_16_bits_as_float32(written) -> None:
    tree = {"kind": "dict", "items": {"a": array(offset=8), "b": {"kind": "plain", "value": None}, "c": array()}}
    path = written(tree)
    assert module.read_tree(path)["path"] == path
    content = np.array([7.0, 1.0, -2.0], np.float32).tobytes()
    assert module.read_array(written({}, content), array(offset=4)).tolist() == [1.0, -2.0]
    # OCP's e5m2 is the upper half of a float16, e4m3 has a bias of 7, and bfloat16 is the upper half of a float32.
    bits = {"float8_e5m2": b"\x3c\xc0", "float8_e4m3fn": b"\x38\xc0", "bfloat16": b"\x80\x3f\x00\xc0"}
    for dtype, stored in bits.items():
        found = module.read_array(written({}, stored), array(dtype))
        assert (found.tolist(), found.dtype) == ([1.0, -2.0], np.float32)
    sizes = {"float32": 4, "bfloat16": 2, "float8_e5m2": 1, "complex64": 4, "complex128": 8, "int32": 0, "bool": 0}
    assert {dtype: module.float_bytes(dtype) for dtype in sizes} == sizes


@pytest.mark.parametrize(
    ("strides", "shape", "shares"),
    [
        *(((1,), (3,), False), ((-1,), (3,), False), ((0,), (3,), True), ((0,), (1,), False), ((), (), False)),
        *(((3, 1), (2, 3), False), ((1, 3), (3, 2), False), ((2, 1), (2, 3), True), ((0, 1), (2, 3), True)),
    ],
)
def test_elements_share_a_place_where_a_step_is_no_longer_than_those_below_it_reach(strides, shape, shares) -> None:
    tree = {"kind": "array", "strides": strides, "shape": shape}
    assert module.shares_elements(tree) is shares
    assert module.shares_elements({"kind": "tuple", "items": [{"kind": "plain"}, tree]}) is shares


@pytest.mark.parametrize(
    ("dtype", "holds"),
    [("float32", True), ("float64", True), ("float16", True), ("complex64", True), ("int32", False), ("bool", False)],
)
def test_the_suites_own_nan_is_known_from_a_kernels(written, dtype, holds) -> None:
    storage = np.dtype(dtype)
    size = storage.itemsize // (2 if storage.kind == "c" else 1)
    count = 2 * storage.itemsize // size
    values = np.zeros(count, f"i{size}")
    if size in POISON:
        values[-1] = POISON[size]
    tree = {"kind": "tuple", "items": [{"kind": "plain", "value": 1}, array(dtype)]}
    assert module.holds_poison(tree, written(tree, values.tobytes())) is holds
    if holds:
        assert not module.holds_poison(tree, written(tree, np.full(2, np.nan, dtype).tobytes()))
