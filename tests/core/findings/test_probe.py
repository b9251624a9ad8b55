"""A probe as data: its cases, claims that are tried row by row, and the order in which findings come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest

from pyperf_suite.errors import UserError, Within
from pyperf_suite.findings.data import findings, remark
from pyperf_suite.findings.probe import Probe
from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import exactly

CPU = Device("cpu")


COMPUTED = {"loud": lambda row: row.implementation.upper()}


@dataclass(frozen=True)
class SomeAxes:
    n: Annotated[tuple[int, ...], Within(1)] = (16, 16, 32)


@pytest.fixture
def probe(product: Any) -> Probe:
    """Products of each size."""

    def sweep(axes: SomeAxes) -> list[Case]:
        return [product(n).case for n in axes.n if n < 1000]

    return Probe("some_thing", "What?", "products", lambda profile, device: SomeAxes(), sweep, computed=COMPUTED)


def test_shapes_by_their_names_have_the_axes_of_a_model_which_are_then_fixed(probe: Probe) -> None:
    shaped = replace(probe, shaped=lambda axes, name, _: SomeAxes((len(name), len(axes.n))), fixed_by_shape=("n",))
    assert [case.parameters.n for case in shaped.cases("quick", CPU, {"shape": "large, small7"})] == [5, 3, 6]
    with pytest.raises(UserError, match=r"n=5 was requested with shape=a,b, which fixes it"):
        shaped.cases("quick", CPU, {"shape": "a,b", "n": "5"})


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"n": "0"}, "n is at least 1"),
        ({"m": "5"}, "There is no axis 'm' here"),
        ({"n": "4000"}, "some_thing has no case with n=4000: leave an axis out"),
    ],
)
def test_axes_without_a_case_are_refused_in_one_sentence(
    probe: Probe, overrides: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        probe.cases("quick", CPU, overrides)


@pytest.mark.parametrize(("busy", "cases", "is_listed"), [(1, 3, True), (2, 4, True), (2, 3, False)])
def test_of_cases_that_were_mostly_never_seen_undisturbed_sentences_are_counted_and_not_listed(
    probe: Probe, product: Any, busy: int, cases: int, is_listed: bool
) -> None:
    noise = remark("{faster} as fast", effect="faster", faster=exactly(1.0))
    said = replace(probe, analyse=lambda rows: findings(noise, remark("{rows} rows", rows=len(rows))))
    made = [record for n in range(16, 16 + cases) for record in product(n).records(1.0)]
    quality = {"converged": True, "disturbances": {"clean_share": 0.0}}
    made = [replace(each, sampling=each.sampling | {"quantile": 0.1}) for each in made]
    made[:busy] = [replace(each, quality=each.quality | quality) for each in made[:busy]]
    *cautions, _, last = said.findings(made).remarks
    assert last.is_noise == (not is_listed)
    assert [each.values for each in cautions] == ([] if is_listed else [{"noisy": 2, "cases": 3, "count": 1}])
