"""The collectives probe sweeps what was requested, and nothing that an operation or a machine cannot take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.findings.axes import NO, YES, Sizes
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.probes.collectives import PROBE, CollectivesAxes, tournament

CPU = resolve("cpu")


def axes(**changed: object) -> CollectivesAxes:
    usual = CollectivesAxes(op=("all_reduce",), size=(Sizes(64, 64),), ranks=(4,))
    return replace(usual, **changed)  # type: ignore[arg-type]


@given(st.integers(1, 2**40), st.integers(0, 2**40), st.integers(2, 1000))
def test_sizes_are_read_back_as_they_are_written(smallest: int, more: int, factor: int) -> None:
    sizes = Sizes(smallest, smallest + more, factor)
    again = Sizes.parse(str(sizes))
    assert again.ladder() == sizes.ladder()


def test_what_an_operation_does_not_take_is_not_crossed_with_it() -> None:
    chosen = axes(
        op=("all_reduce", "broadcast", "all_to_all"), in_place=(NO, YES), reduction=("sum", "max"), root=(0, 3)
    )
    cases = PROBE.sweep(chosen)
    counted = {op: sum(case.parameters.op == op for case in cases) for op in chosen.op}
    assert counted == {"all_reduce": 4, "broadcast": 4, "all_to_all": 1}
    for case in cases:
        case.validate()


def test_where_no_size_has_an_element_for_each_rank_the_least_that_has_is_named() -> None:
    with pytest.raises(UserError, match=r"less than one float32 for each of .* ask for at least 4 bytes"):
        PROBE.cases("quick", CPU, {"op": "all_reduce", "size": "1,3"})


@pytest.mark.parametrize(
    "changed", [{"peer_to_peer": (YES, NO)}, {"symmetric": (YES,)}, {"settings": ("default", "CTAPolicy=2")}]
)
def test_what_is_of_nccl_is_refused_where_none_runs_over_it(changed: dict[str, object]) -> None:
    with pytest.raises(UserError, match="are NCCL's, but only gloo was requested"):
        PROBE.sweep(axes(**changed))


@pytest.mark.parametrize("ranks", [2, 3, 8, 9, 16, 33])
def test_in_a_tournament_all_meet_once_and_none_is_at_two_places(ranks: int) -> None:
    rounds = tournament(ranks)
    met = [pair for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met)) == ranks * (ranks - 1) // 2
    for pairs in rounds:
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy))


def test_under_a_launcher_the_ranks_are_those_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert {case.parameters.ranks for case in PROBE.cases("quick", CPU)} == {3}
    with pytest.raises(UserError, match="ranks=8 was requested, but the launcher started 3"):
        PROBE.cases("quick", CPU, {"ranks": "8"})
