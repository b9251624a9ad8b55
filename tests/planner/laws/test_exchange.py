"""What of the exchange of gradients is exposed, as the verdict on a network counts it."""

from __future__ import annotations

import pytest

from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.laws.traffic import PARALLELISMS, StepTransfer, TrainingWorkload, verdict
from pyperf_suite.planner.laws.training.step import exposed_exchange_s

LLAMA = ModelDimensions(layers=32, hidden=4096, ffn=11008, heads=32, vocab=32000, gated=True)
WORK = TrainingWorkload(seq=4096, micro_batch=2, micro_batches=4)


def over_a_link(gb_per_s: float):
    """The curve of a link of that busbw and no latency."""

    def seconds_of(operation: str, size_bytes: float, ranks: int) -> float:
        return StepTransfer("", operation, 1, size_bytes, ranks).bus_bytes / (gb_per_s * 1e9)

    return seconds_of


@pytest.mark.parametrize("stage", range(4))
def test_a_verdict_exposes_what_the_law_of_the_exchange_says(stage: int) -> None:
    # 4 micro-batches: what is sent once has one pass of them, and what is sent in each has each.
    traffic, compute_s, link = list(PARALLELISMS.values())[stage](LLAMA, WORK, 64), 2.0, over_a_link(20)
    sent_s: dict[str, float] = {}
    for each in traffic.transfers:
        if each.behind == "backward" or each.operation != "all_gather" or stage < 3:
            times = 4 if each.share == 1 else 1
            sent_s[each.operation] = sent_s.get(each.operation, 0.0) + each.seconds(link) / times
    passes_s = {"forward": compute_s / 3 / 4, "backward": compute_s * 2 / 3 / 4}
    exposed = exposed_exchange_s(stage, sent_s, passes_s)
    due = sum(seconds * (4 if each else 1) for (_, each), seconds in exposed.items())
    assert verdict(traffic, compute_s, link).exposed_s == pytest.approx(due)
    assert due > 0
