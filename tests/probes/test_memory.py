"""The memory probe: what it crosses, and what it says of bytes that were counted."""

from __future__ import annotations

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.training.activations import kept_bytes
from pyperf_suite.operators.training.saved_memory import TrainingMemory, TrainingMemoryParameters
from pyperf_suite.probes.training.memory import Memory
from pyperf_suite.probes.training.memory_findings import BYTES_A_PARAMETER
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.record import Metric, Record

torch = pytest.importorskip("torch")

CPU = Device("cpu")
SMALL = TrainingMemoryParameters(hidden=32, heads=4, layers=2, seq=16, batch=2, vocab=64)


def read(**change):
    p = TrainingMemoryParameters(**{**vars(SMALL), **change})
    return {name: metric["value"] for name, metric in TrainingMemory().inspect("storages", p).metrics.items()}


@pytest.mark.parametrize(("precision", "of_weights", "of_states"), [("float32", 4, 8), ("bfloat16", 2, 4)])
def test_weights_gradients_and_two_moments_are_counted_to_the_byte(precision, of_weights, of_states):
    found = read(precision=precision)
    assert found["weights"] == found["gradients"] == of_weights * found["parameters"]
    # A step's number in float32 stands beside each tensor's moments.
    tensors = (found["optimizer"] - of_states * found["parameters"]) / 4
    assert tensors == 2 * 12 + 2 + 2  # two blocks, two embeddings, the last norm


def test_the_peak_holds_the_state_and_no_more_than_all_four_and_what_is_at_work():
    found = read()
    assert found["peak"] > found["weights"] + found["optimizer"] + found["activations"]


def test_checkpointing_lowers_the_peak():
    from pyperf_suite.operators.training.shape import Checkpointing

    plain, dropped = (read(layers=6, batch=16, checkpointing=Checkpointing(kind)) for kind in ("none", "every"))
    assert dropped["peak"] < 0.7 * plain["peak"]


def test_other_threads_are_left_as_they_were():
    before = torch.get_num_threads()
    read()
    assert torch.get_num_threads() == before


def test_a_case_without_a_gpu_is_unsupported_with_the_reason():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    answer = measure_case(Case("training_memory", SMALL, "allocator"), None, CPU)
    assert answer["outcome"] == "unsupported"
    assert "cannot use a GPU" in answer["reason"]


def test_the_standard_sweep_crosses_more_than_forty_configurations():
    cases = Memory().cases("standard", CPU)
    assert len(cases) >= 40
    assert len({case.case_id for case in cases}) == len(cases)
    assert {case.parameters.checkpointing.kind for case in cases} == {"none", "every", "selective"}


def record(parameters, **changed):
    parts = {"parameters": 1000, "weights": 4000, "gradients": 4000, "optimizer": 8000, "weight_copies": 2000}
    values = {**parts, "activations": 5000, "peak": 20000, "capacity": 1e9, **changed}
    return Record(
        **{
            **dict.fromkeys(Record.__dataclass_fields__),
            "kind": "static",
            "outcome": "ok",
            "case": Case("training_memory", parameters, "storages").to_json(),
            "case_id": Case("training_memory", parameters, "storages").case_id,
            "kernel": {"name": "transformer_step", "path": "cpu"},
            "metrics": {name: Metric("B", *5 * (value,), [value]) for name, value in values.items()},
        }
    )


def test_eighteen_bytes_a_parameter_hold_or_do_not_by_what_was_counted():
    mixed = TrainingMemoryParameters(**{**vars(SMALL), "precision": "autocast_bfloat16"})
    assert BYTES_A_PARAMETER == 18
    holds = [s for s in Memory().findings([record(mixed)]).sentences if "bytes a parameter" in s]
    assert "18.00" in holds[0]
    assert "claim holds" in holds[0]
    fails = [s for s in Memory().findings([record(mixed, weight_copies=0)]).sentences if "bytes a parameter" in s]
    assert "16.00" in fails[0]
    assert "does not hold here" in fails[0]


def test_a_law_that_is_off_is_said_to_be_and_where():
    first = Memory().findings([record(SMALL, activations=1)]).sentences[0]
    assert "furthest off: gpt, sdpa, float32, 2 x 16" in first


def test_what_is_counted_has_no_interval():
    mixed = TrainingMemoryParameters(**{**vars(SMALL), "precision": "autocast_bfloat16"})
    assert not [s for s in Memory().findings([record(mixed)]).sentences if "[" in s]


def test_batches_are_drawn_as_points_on_the_law():
    batches = [TrainingMemoryParameters(**{**vars(SMALL), "batch": batch}) for batch in (4, 1, 2)]
    laws = [kept_bytes(p.dimensions, p.batch, p.seq, p.keeping("cpu")).total for p in batches]
    counted = [record(p, activations=law) for p, law in zip(batches, laws, strict=True)]
    other = TrainingMemoryParameters(**{**vars(SMALL), "precision": "autocast_bfloat16"})  # stands first in the table
    (figure,) = Memory().findings([record(other), *counted]).figures
    (panel,) = figure.rows[0]
    law, points = panel.series
    assert list(points.x) == [1, 2, 4]
    drawn = dict(zip(law.x, law.y, strict=True))
    assert [drawn[x] for x in points.x] == pytest.approx(points.y)


def test_one_size_alone_is_not_drawn():
    assert Memory().findings([record(SMALL)]).figures == ()


def test_ranks_and_recomputing_lower_the_need_by_the_law():
    table = next(t for t in Memory().findings([record(SMALL)]).tables if "TP" in t.columns)
    needs = {row[:3]: float(row[-1]) for row in table.rows}
    assert len(needs) == 9
    for cut in (("1", "no"), ("8", "no"), ("8", "yes")):
        by_dropped = [need for key, need in needs.items() if key[:2] == cut]
        assert by_dropped == sorted(by_dropped, reverse=True)
    for dropped in {key[2] for key in needs}:
        assert needs["1", "no", dropped] > needs["8", "no", dropped] > needs["8", "yes", dropped]


def test_a_block_there_is_not_is_refused():
    with pytest.raises(UserError, match="block=bert was asked for: choose from gpt, llama"):
        Memory().cases("quick", CPU, {"block": "bert"})


def test_nothing_is_said_of_no_records():
    assert Memory().findings([]).sentences == ()


def test_every_row_of_every_table_has_a_figure_under_each_heading():
    tables = Memory().findings([record(SMALL)]).tables
    assert len(tables) == 4
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}, table.title
