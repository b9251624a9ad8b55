"""FLOPs of one step of the transformer: what its mathematics asks for, what torch computes, what guides estimate."""

from __future__ import annotations

from pyperf_suite.laws.model_flops import PASSES, hardware_flop, model_flop
from pyperf_suite.workloads.training.shape import TransformerShape


def asked_flop(shape: TransformerShape, causal_halved: bool = True) -> float:
    """Forward and backward by the laws (laws/model_flops.py), of layers alone where there is no vocabulary."""
    flop = model_flop(shape.dimensions, shape.batch, shape.seq, causal_halved)
    return float(flop) - _logits_of_none(shape)


def computed_flop(shape: TransformerShape, causal_halved: bool = True) -> float:
    """With what checkpointing computes again: all of a group up to its last product, whose result nobody needs.

    Selective checkpointing computes no product again. Fused attention computes its scores again in backward, which
    here is left out as in most published figures (PaLM, appendix B).
    """
    if shape.checkpointing.kind != "every":
        return asked_flop(shape, causal_halved)
    flop = float(hardware_flop(shape.dimensions, shape.batch, shape.seq, "layers", causal_halved))
    groups = -(-shape.layers // shape.checkpointing.every)
    return flop - _logits_of_none(shape) - groups * 2 * shape.tokens * shape.width * shape.hidden


def guides_flop(shape: TransformerShape, parameters: int) -> float:
    """Parameters x 3 (4 with checkpointing) x 2 x seq x batch (BigScience, tflops_optimization.md)."""
    passes = PASSES + (shape.checkpointing.kind == "every")
    return 2.0 * passes * parameters * shape.tokens


def _logits_of_none(shape: TransformerShape) -> float:
    """What the laws' model has in logits over a vocabulary of one, where there is none."""
    return 0.0 if shape.vocab else PASSES * 2.0 * shape.tokens * shape.hidden
