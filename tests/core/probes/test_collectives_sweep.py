"""The collectives probe sweeps what was requested, and nothing that an operation or a machine cannot take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.findings.axes import Sizes
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.probes.collectives import PROBE, CollectivesAxes, tournament

CPU = resolve("cpu")


def axes(**changed: object) -> CollectivesAxes:
    usual = CollectivesAxes(op=("all_reduce",), size=(Sizes(64, 64),), ranks=(4,))
    return replace(usual, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [2, 3, 8, 9, 16, 33])
def test_in_a_tournament_all_meet_once_and_none_is_at_two_places(ranks: int) -> None:
    rounds = tournament(ranks)
    met = [pair for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met)) == ranks * (ranks - 1) // 2
    for pairs in rounds:
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy))


def test_every_two_ranks_are_a_pair_and_one_is_as_named() -> None:
    for asked, patterns in (("all", ["0-1", "0-2", "0-3", "1-2", "1-3", "2-3"]), ("1-3", ["1-3"]), ("none", [])):
        cases = [case.parameters for case in PROBE.sweep(axes(pairs=(asked,)))]
        assert [p.pattern for p in cases if p.op == "ping_pong"] == patterns


def test_under_a_launcher_the_ranks_are_those_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert {case.parameters.ranks for case in PROBE.cases("quick", CPU)} == {3}
    with pytest.raises(UserError, match="ranks=8 was requested, but the launcher started 3"):
        PROBE.cases("quick", CPU, {"ranks": "8"})
