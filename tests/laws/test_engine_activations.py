"""What autograd keeps on a rank, against the law of one process, and against what engines were seen to keep."""

from dataclasses import replace

import pytest

from pyperf_suite.laws.training.activations import Keeping, kept_bytes
from pyperf_suite.laws.training.engine_activations import saved_bytes
from pyperf_suite.laws.training.shared_cores import interleaved, one_forward_one_backward
from pyperf_suite.workloads.training import TransformerShape

MODEL = TransformerShape(hidden=128, heads=4, layers=4, seq=128, vocab=512, tied=False).dimensions
KEEPINGS = [
    Keeping(),
    Keeping(attention="math"),
    Keeping(checkpointing="every"),
    Keeping(checkpointing="every", every=2),
    Keeping(checkpointing="selective"),
]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("keeping", KEEPINGS, ids=str)
def test_one_rank_keeps_what_one_process_keeps(keeping, gated):
    model = replace(MODEL, gated=gated, bias=not gated)
    assert saved_bytes(model, 2, 128, keeping) == pytest.approx(kept_bytes(model, 2, 128, keeping).total)


def test_tensor_parallel_ranks_keep_what_torch_was_seen_to_keep():
    # One rank of tp2 in a study of this model, batch 2: every storage that autograd held, counted.
    assert saved_bytes(MODEL, 2, 128, Keeping(), tensor=2) == 5_198_852


def test_stages_in_front_keep_more_micro_batches_than_stages_behind():
    def kept(stage, micro_batches=4):
        order = one_forward_one_backward(stage, 2, micro_batches)
        return saved_bytes(
            MODEL, 2, 128, Keeping(), chunk_layers=2, last_chunk=1, order=order, micro_batches=micro_batches
        )

    whole = kept_bytes(MODEL, 2, 128, Keeping()).total
    assert kept(0) > 0.9 * whole
    assert kept(1) < whole
    tokens = 8 * 2 * 128
    assert kept(0, 8) - kept(0, 4) == 4 * tokens
    assert kept(1, 8) - kept(1, 4) == 4 * tokens


def test_interleaved_stages_keep_more_than_1f1b():
    def kept(order, layers, last):
        return saved_bytes(MODEL, 2, 128, Keeping(), chunk_layers=layers, last_chunk=last, order=order, micro_batches=4)

    plain = kept(one_forward_one_backward(0, 2, 4), 2, 1)
    cut = kept(interleaved(0, 2, 2, 4), 1, 3)
    assert plain < cut < 2 * plain
