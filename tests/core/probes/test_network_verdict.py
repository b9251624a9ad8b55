"""Verdicts whether a network is enough to train over, by the collectives probe's measurements."""

from __future__ import annotations

from functools import partial

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Findings
from pyperf_suite.findings.rows import rows_of
from pyperf_suite.laws.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.laws.training.messages import StepTransfer
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.probes.collectives import analyse, verdict
from pyperf_suite.probes.collectives.verdict import TrainingSizes, WayToTrain, seconds_of
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.record import Record
from tests.core.probes.conftest import Network
from tests.core.probes.test_collectives import cases, remarks, said, table


def judged(records: list[Record], training: TrainingSizes) -> Findings:
    return analyse(rows_of(records), partial(verdict.judged, training))


TRAINED = ("all_reduce", "all_gather", "reduce_scatter", "send_receive", "all_to_all")


LLAMA_7B = ModelDimensions(layers=32, hidden=4096, ffn=11008, heads=32, vocab=32000, gated=True)
WAYS = "Ways to train in parallel (predicted)"


def test_every_way_to_train_is_judged_and_the_most_demanding_one_told() -> None:
    findings = judged(Network().records(cases(op=TRAINED)), TrainingSizes(1.0, LLAMA_7B))
    ways = {row["parallelism"]: row for row in table(findings, WAYS)}
    assert [*ways] == ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "TP", "TP+SP", "PP", "EP of 8 experts"]
    assert {row["network"] for row in ways.values()} == {"enough", "network-bound"}
    message = {each.values["way"]: each.values for each in remarks(findings, "for a step that computes")}
    highest = max(ways, key=lambda way: ways[way]["too slow below compute of"])
    assert set(message) == {"DDP", highest}
    assert message["DDP"]["bound"].value == ways["DDP"]["too slow below compute of"]  # type: ignore[union-attr]
    rate = ways["DDP"]["on the bus a step"] / ways["DDP"]["communication"]
    assert message["DDP"]["rate"] == Quantity(rate, "GB/s", predicted=True)
    assert message["DDP"]["compute"].value == 1.0  # type: ignore[union-attr]
    assert not remarks(findings, "Not judged")


def test_a_model_is_given_by_its_dimensions() -> None:
    training = TrainingSizes.parse(
        "layers=12, hidden=768, ffn=3072, heads=12, vocab=50257, tied=true, seq=1024, compute_ms=90"
    )
    assert training == TrainingSizes(0.09, ModelDimensions(12, 768, 3072, 12, 50257, tied=True), 1024)
    model = said(judged(Network().records(cases()), training), "Judged for a model")
    assert [model[name] for name in ("layers", "hidden", "tokens")] == [12, 768, 1024]
    untold = TrainingSizes.parse("layers=1,hidden=64,ffn=64,heads=1,vocab=64", flop_per_s=1e12)
    assert untold.compute_s == pytest.approx(6 * untold.model.parameters * 4096 / 1e12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write NAME=NUMBER"),
        ("layers=many", "write NAME=NUMBER, as in hidden=4096"),
        ("layers=2,depth=3", "knows no depth: give .*layers"),
        ("layers=2,hidden=64", "lacks ffn, heads, vocab"),
        ("layers=2,hidden=65,ffn=64,heads=2,vocab=9", "65 cannot be divided into 2 heads"),
        ("layers=inf,hidden=64,ffn=64,heads=2,vocab=9", "layers=inf .* whole numbers"),
        ("layers=1.5,hidden=64,ffn=64,heads=2,vocab=9", "layers=1.5 .* whole numbers"),
        ("layers=2,hidden=64,ffn=64,heads=2,vocab=9,compute_ms=nan", "compute_ms=nan .* above 0"),
        ("layers=2,hidden=64,ffn=64,heads=2,vocab=9,seq=0", "seq=0 .* above 0"),
        ("depth=3", "give layers, hidden, ffn, heads, vocab"),
    ],
)
def test_a_model_that_cannot_be_is_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainingSizes.parse(text)


def way(compute_s: float, *sent_s: tuple[StepTransfer, float]) -> WayToTrain:
    return WayToTrain("made up", 2, compute_s, sent_s)


def transfer(behind: str | None = None) -> StepTransfer:
    return StepTransfer("broadcast", 1, 1.0, 2, behind)  # type: ignore[arg-type]


def test_only_what_is_longer_than_the_pass_it_overlaps_is_exposed() -> None:
    # Forward takes 0.3 s and hides 0.3 of 0.5 s; backward takes 0.6 s and hides all; 0.2 s are waited for.
    judged = way(0.9, (transfer("forward"), 0.5), (transfer("backward"), 0.5), (transfer(), 0.2))
    assert judged.exposed_s(0.9) == pytest.approx(0.4)
    assert judged.exposed_share(0.9) == pytest.approx(0.4 / 1.3)
    assert judged.communication_s == pytest.approx(1.2)


def test_below_its_bound_of_computing_a_step_is_network_bound_and_above_it_is_not() -> None:
    # 0.3 s behind a backward of 2/3 c: a tenth of the step is exposed where 0.9 (0.3 - 2/3 c) = 0.1 c.
    bound_s = way(1.0, (transfer("backward"), 0.3)).bound_s
    assert bound_s == pytest.approx(0.27 / 0.7, rel=1e-3)
    at = [way(times * bound_s, (transfer("backward"), 0.3)).is_network_bound for times in (0.99, 1.01)]
    assert at == [True, False]


@pytest.mark.parametrize(
    ("ranks", "seconds"),
    [
        (2, 11e-6),
        (8, 30e-6 + 1e-6 / 3),
        (3, 10e-6 + (2 * 2 / 3) / 1 * 1e-6),  # the curve of 2, the bytes on the bus, 1.33 to 1
        (16, 30e-6 + (2 * 15 / 16) / (2 * 7 / 8) * 1e-6 / 3),
    ],
)
def test_a_curve_of_other_ranks_is_read_at_as_many_bytes_on_the_bus(ranks: int, seconds: float) -> None:
    laws = {2: PiecewiseAlphaBeta(10e-6, (), (1e-9,)), 8: PiecewiseAlphaBeta(30e-6, (), (1e-9 / 3,))}
    assert seconds_of(laws, StepTransfer("all_reduce", 5, 1000, ranks)) == pytest.approx(5 * seconds)
