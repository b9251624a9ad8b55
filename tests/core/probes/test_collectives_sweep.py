"""The collectives probe sweeps what was requested, and nothing that an operation or a machine cannot take."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.findings.axes import NO, YES, Sizes
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.probes.collectives import PROBE, CollectivesAxes, tournament
from pyperf_suite.runner.profiles import find_profile
from pyperf_suite.workloads.collective import CollectiveParameters

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


def test_a_size_that_has_no_element_for_each_rank_is_left_out() -> None:
    cases = PROBE.sweep(axes(op=("all_reduce", "all_gather"), size=(Sizes(4, 16, 4),)))
    assert {(case.parameters.op, case.parameters.bytes) for case in cases} == {
        ("all_reduce", 4),
        ("all_reduce", 16),
        ("all_gather", 16),
    }


def test_where_no_size_has_an_element_for_each_rank_the_least_that_has_is_named() -> None:
    with pytest.raises(UserError, match=r"less than one float32 for each of .* ask for at least 4 bytes"):
        PROBE.cases("quick", CPU, {"op": "all_reduce", "size": "1,3"})


def test_links_are_left_out_only_of_what_runs_over_nccl() -> None:
    cases = PROBE.sweep(axes(implementation=("nccl", "c10d_nccl"), peer_to_peer=(YES, NO), registered=(NO, YES)))
    taken = {(c.implementation, c.parameters.peer_to_peer, c.parameters.registered) for c in cases}
    assert len(taken) == len(cases) == 6
    assert ("c10d_nccl", True, True) not in taken


def test_windows_and_settings_are_asked_only_of_our_own_calls_of_nccl() -> None:
    chosen = axes(
        implementation=("nccl", "c10d_nccl"),
        registered=(NO, YES),
        symmetric=(NO, YES),
        settings=("default", "blocking=1"),
    )
    parameters = [case.parameters for case in PROBE.sweep(chosen) if case.implementation == "nccl"]
    assert {(p.registered, p.symmetric, p.settings) for p in parameters} == {
        (registered, symmetric, settings)
        for registered, symmetric in ((False, False), (True, False), (False, True))
        for settings in ("", "blocking=1")
    }
    assert [c.parameters for c in PROBE.sweep(chosen) if c.implementation == "c10d_nccl"] == [
        CollectiveParameters("all_reduce", 64, 4)
    ]


@pytest.mark.parametrize(
    "changed", [{"peer_to_peer": (YES, NO)}, {"symmetric": (YES,)}, {"settings": ("default", "CTAPolicy=2")}]
)
def test_what_is_of_nccl_is_refused_where_none_runs_over_it(changed: dict[str, object]) -> None:
    with pytest.raises(UserError, match="are NCCL's, but only gloo was requested"):
        PROBE.sweep(axes(**changed))


def test_settings_are_read_from_a_command() -> None:
    cases = PROBE.cases(
        "quick",
        CPU,
        {"implementation": "nccl", "settings": "default,CTAPolicy=2+maxCTAs=8", "size": "64", "ranks": "2"},
    )
    assert {json.dumps(case.parameters.configuration) for case in cases} == {"{}", '{"CTAPolicy": 2, "maxCTAs": 8}'}


def test_every_two_ranks_are_a_pair_and_one_is_as_named() -> None:
    cases = [case for case in PROBE.sweep(axes(pairs=("all",))) if case.parameters.op == "ping_pong"]
    assert [case.parameters.pattern for case in cases] == ["0-1", "0-2", "0-3", "1-2", "1-3", "2-3"]
    (named,) = [case for case in PROBE.sweep(axes(pairs=("1-3",))) if case.parameters.pairs]
    assert named.parameters.pattern == "1-3"
    (halves,) = [case for case in PROBE.sweep(axes(pairs=("bisection",))) if case.parameters.pairs]
    assert halves.parameters.op == "bisection"


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


def test_profiles_keep_to_their_time_on_a_cpu() -> None:
    limits_s = {"quick": 9, "standard": 110}
    for name, limit_s in limits_s.items():
        profile = find_profile(name)
        assert len(PROBE.cases(name, CPU)) * profile.processes * profile.effort.seconds_at_most < limit_s
