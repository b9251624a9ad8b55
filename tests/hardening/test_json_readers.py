"""Whatever JSON stands where a reader expects its own, it reads it or says no in one sentence."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pyperf_suite.advise.model.config import _object_in, model_config
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.topology import LinkGraph
from pyperf_suite.history.selfcheck import Comparison
from pyperf_suite.history.stored import foreign
from pyperf_suite.history.stored.journals import summarise_journal
from pyperf_suite.runner.record import Record

SEEDS = st.integers(0, 2**32)
# A hundred inputs an example: few examples do, unless a profile asks for other ones in each run.
SOME = settings(max_examples=3, phases=[Phase.generate]) if settings().derandomize else settings()
RESULTS = Path(__file__).parents[2] / "bench_results"

FOREIGN = {
    "machine_info": {"cpu": {"brand_raw": "A CPU", "count": 8}, "system": "Linux", "python_version": "3.11.7"},
    "commit_info": {"id": "a" * 40, "dirty": False},
    "datetime": "2026-01-01T00:00:00+00:00",
    "version": "5.1.0",
    "benchmarks": [
        {"fullname": "test_a.py::test_a", "stats": {"median": 1e-3, "data": [1e-3, 2e-3], "rounds": 2}},
        {"name": "test_b", "stats": {"median": 2e-3, "min": 1e-3, "max": 3e-3, "iqr": 1e-4, "rounds": 9}},
    ],
}
SIZES = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "head_dim": 64,
}
CONFIGS = (
    {"model_type": "llama", **SIZES},
    {"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 1024, "vocab_size": 1000},
    {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 4096, **SIZES},
    {"model_type": "unknown", "text_config": {"model_type": "llama", **SIZES}},
    {
        "model_type": "deepseek_v3",
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        **SIZES,
    },
)
COMPARISON = {
    "shift": 0.0,
    "number": 1,
    "probe": "tile_wave",
    "case_id": "0" * 16,
    "label": "matmul[native m=1]",
    "verdict": "equivalent",
    "ratio": 1.01,
    "seconds": 2.5,
    "log_ratios": [0.01, -0.01],
    "commit": "a" * 40,
    "started_at": "2026-01-01T00:00:00+00:00",
    "machine": {"load": 0.5},
}


def shortened(value: Any) -> Any:
    """A record without most of its samples, so that most of what is spoiled is something else."""
    if isinstance(value, list):
        return [shortened(each) for each in value[:4]]
    return {key: shortened(each) for key, each in value.items()} if isinstance(value, dict) else value


@functools.cache
def real_records() -> list[dict[str, Any]]:
    """The first record of each probe and outcome among the runs that the checkout has."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(RESULTS.glob("*/*/records.jsonl")):
        for line in path.read_bytes().splitlines():
            record = json.loads(line)
            found.setdefault((record["probe"], record["outcome"]), shortened(record))
    if not found:
        pytest.skip(f"there is no record in {RESULTS} to begin from")
    return list(found.values())


def use_record(value: Any) -> None:
    """Read it, and do with it what the runner and the history do before any probe looks at it."""
    record = Record.from_json(value)
    assert hash((record.probe, record.case_id, record.process)) is not None
    if record.outcome == "ok" and record.kind != "static":
        assert record.seconds > 0
        assert len(record.kept_seconds) <= len(record.metrics["time"].samples)
    summarise_journal(io.BytesIO(json.dumps(value).encode() + b"\n"), "a-machine")
    record.parsed_case()


def use_config(value: Any) -> None:
    found = model_config(_object_in(json.dumps(value).encode(), "config.json"), "config.json")
    assert 0 < found.dimensions.parameters < 10**19


def use_wiring(value: Any) -> None:
    graph = LinkGraph.from_json(value)
    for gpu in graph.gpus:
        graph.nearest_nics(gpu)


@given(seed=SEEDS)
@SOME
def test_any_record_is_used_or_refused(each_spoiled, seed):
    each_spoiled(seed, real_records(), use_record, (UserError,))


@given(seed=SEEDS)
@SOME
def test_any_model_configuration_is_read_or_refused(each_spoiled, seed):
    each_spoiled(seed, CONFIGS, use_config, (UserError,))


@given(seed=SEEDS)
@SOME
def test_any_comparison_of_a_selfcheck_is_read_or_refused(each_spoiled, seed):
    each_spoiled(seed, (COMPARISON,), Comparison.from_json, (ValueError,))


@given(seed=SEEDS)
@SOME
def test_any_json_of_other_projects_is_read_or_refused(each_spoiled, tmp_path_factory, seed):
    path = tmp_path_factory.getbasetemp() / "foreign.json"

    def read(value: Any) -> None:
        path.write_text(json.dumps(value))
        foreign.read_foreign(path)

    each_spoiled(seed, (FOREIGN,), read, (UserError,))


def test_what_is_good_is_read():
    for record in real_records():
        use_record(record)
    for config in CONFIGS:
        use_config(config)
    Comparison.from_json(COMPARISON)
