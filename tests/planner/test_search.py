"""The search finds what a made-up GPU likes, proposes nothing within the laws' error, and prices shapes once."""

from __future__ import annotations

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.sizing.search import Bounds, costs_of, judged, memory_of, neighbours, search
from pyperf_suite.planner.sizing.step import Setting, resized
from tests import models
from tests.models import LLAMA, MIXTRAL

GPT = ModelDimensions(layers=32, hidden=2560, ffn=10240, heads=32, vocab=50257, bias=True)
DEEPSEEK = models.MODELS["deepseek-v2-lite"]
MODELS = pytest.mark.parametrize("model", [GPT, LLAMA, MIXTRAL, DEEPSEEK], ids=["gpt", "llama", "mixtral", "deepseek"])


def test_padding_the_vocabulary_is_found_with_its_gain(made_up):
    present, padded = judged([Setting(GPT, 4096), Setting(resized(GPT, vocab=50304), 4096)], made_up)
    found = search(Setting(GPT, 4096), Bounds(vary=("vocab",)), made_up)
    assert set(found.alone) == {"vocab"}
    assert found.alone["vocab"].is_faster
    assert found.alone["vocab"].speed == pytest.approx(padded.speed, rel=1e-3)
    assert padded.changes == (("vocab", 50257, 50304),)
    assert present.speed == present.time_ratio == present.low == present.high == 1


def test_nothing_is_proposed_below_the_laws_error(made_up_with):
    found = search(Setting(LLAMA, 4096), Bounds(), made_up_with(error_percent=5.0))
    assert found.pareto == ()
    assert found.faster == 0
    assert found.within > 1000


@MODELS
def test_every_candidate_of_the_list_keeps_to_the_bounds(model, made_up):
    setting = Setting(model, 4096, micro_batch=2, tp=2, shards=8)
    found = search(setting, Bounds(parameter_change=0.03, memory_bytes=80e9), made_up)
    for candidate in [*found.pareto, *found.alone.values()]:
        assert abs(candidate.parameter_change) <= 0.03
        assert candidate.memory_bytes <= max(80e9, 1.03 * found.present.memory_bytes)
        assert candidate.setting.model.vocab >= model.vocab
        assert candidate.parameters == candidate.setting.model.parameters


@MODELS
def test_the_grid_costs_each_candidate_what_it_costs_alone(model, made_up):
    setting = Setting(model, 2048, micro_batch=2, tp=2, ep=4 if model.experts > 1 else 1)
    candidates = neighbours(setting, Bounds(vary=("hidden", "heads", "ffn", "vocab", "tp")))
    models, plan = candidates.grid()
    trainable = np.flatnonzero(models.valid & plan.divides(models))
    picked = [0, *np.random.default_rng(0).choice(trainable, 12).tolist()]
    costs, memory = costs_of(*candidates.grid(picked), made_up), memory_of(models, plan)
    for place, (row, alone) in enumerate(zip(picked, judged([*map(candidates.at, picked)], made_up), strict=True)):
        assert costs.cost_s[place] == pytest.approx(alone.cost_s)
        assert costs.speed[place] == pytest.approx(alone.speed)
        assert models.parameters[row] == alone.parameters
        assert memory[row] == alone.memory_bytes


def test_the_list_is_a_pareto_front(made_up):
    found = search(Setting(GPT, 4096, micro_batch=2), Bounds(), made_up)
    assert len(found.pareto) > 2
    costs = np.array([(one.time_ratio, -one.parameters, one.memory_bytes) for one in found.pareto])
    assert not np.any(np.all(costs[:, None] < costs, axis=2))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tp": 0}, "tp has to lie between 1 and"),
        ({"ep": 2}, "EP over 2 ranks cannot divide experts = 1 evenly: take ep = 1"),
        ({"model": MIXTRAL, "ep": 3}, "cannot divide experts = 8 evenly: take ep = 2 or 4"),
        ({"model": MIXTRAL, "ep": 8, "shards": 12}, "groups of 8 that share experts: take a multiple of 8 shards"),
        ({"model": MIXTRAL, "ep": 8, "tp": 2}, "more than a node of 8: ask layout"),
        ({"micro_batch": -1}, "micro_batch has to lie between"),
        ({"seq": 1 << 20, "micro_batch": 1 << 12}, "tokens at a time, beyond"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_a_sentence(wrong, words):
    with pytest.raises(UserError, match=words):
        Setting(**{"model": GPT, "seq": 2048, **wrong})
