"""Floating-point operations of training a transformer, and the share of a peak that a measured step makes of them.

Model FLOPs are what the mathematics asks for, hardware FLOPs what is computed, recomputation included: MFU and HFU.
"""

from __future__ import annotations

from typing import Any, Literal

from pyperf_suite.errors import UserError
from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.transformer import Sizes, attention_call, products

# What backward computes once more instead of keeping it: nothing, the attention between its projections
# (selective recomputation; FlashAttention does at least its scores), or whole layers (activation checkpointing).
Recompute = Literal["nothing", "attention", "layers"]
RECOMPUTES: tuple[Recompute, ...] = ("nothing", "attention", "layers")
# Backward computes two gradients for each product of the forward pass.
PASSES = 3


def six_nd(parameters: Sizes, tokens: Sizes) -> Any:
    """6·N·D: 2 FLOP a parameter and token forward, 4 backward, attention left out (Kaplan et al. 2020, section 2.1)."""
    return 6.0 * parameters * tokens


def megatron_flop(layers: Sizes, hidden: Sizes, vocab: Sizes, batch: Sizes, seq: Sizes) -> Any:
    """96·B·s·l·h²·(1 + s/6h + V/16lh): a step of a GPT whose layers are recomputed, ffn = 4h, nothing masked.

    Source: Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters, equation 3.
    """
    share_of_attention, share_of_logits = seq / (6 * hidden), vocab / (16 * layers * hidden)
    return 96.0 * batch * seq * layers * hidden**2 * (1 + share_of_attention + share_of_logits)


def model_flop(model: ModelDimensions, batch: Sizes, seq: Sizes, causal_halved: bool = True) -> Any:
    """Forward and backward over `batch` sequences of `seq` tokens: three times the forward pass's products.

    With `causal_halved` off, the pairs that a causal mask hides count too, as in most published figures (Chowdhery et
    al. 2022, PaLM, appendix B: 6·N + 12·L·H·Q·T a token).
    """
    inside, outside, attention = _forward(model, batch, seq, causal_halved)
    return PASSES * (inside + outside + attention)


def hardware_flop(
    model: ModelDimensions, batch: Sizes, seq: Sizes, recompute: Recompute, causal_halved: bool = True
) -> Any:
    """What is computed with this much recomputation: of "attention" or "layers" one forward pass more, logits never.

    Raises UserError for another word.
    """
    check_recompute(recompute)
    inside, outside, attention = _forward(model, batch, seq, causal_halved)
    once_more = {"nothing": 0.0, "attention": attention, "layers": inside + attention}[recompute]
    return PASSES * (inside + outside + attention) + once_more


def utilization(flop: Any, step_s: Any, gpus: Sizes, peak_flop_per_s: float) -> Any:
    """The share of the GPUs' peak that a step made use of: MFU from `model_flop`, HFU from `hardware_flop`.

    Raises UserError where time, GPUs or peak are not above 0.
    """
    if not (step_s > 0 and gpus > 0 and peak_flop_per_s > 0):
        raise UserError(
            f"A step of {step_s} s on {gpus} GPUs with a peak of {peak_flop_per_s} FLOP/s makes no share of it: "
            "all three have to be above 0."
        )
    return flop / (step_s * gpus * peak_flop_per_s)


def check_recompute(recompute: str) -> None:
    """Raise UserError for anything but what can be recomputed."""
    if recompute not in RECOMPUTES:
        raise UserError(f"Backward cannot recompute {recompute!r}: choose from {', '.join(RECOMPUTES)}.")


def _forward(model: ModelDimensions, batch: Sizes, seq: Sizes, causal_halved: bool) -> tuple[Any, Any, Any]:
    """FLOP of one forward pass: products inside the layers, those outside, and attention between its projections."""
    inside: Any = 0.0
    outside: Any = 0.0
    for product in products(model, batch * seq, phases=("fprop",)):
        if product.outside_layers:
            outside = outside + product.flop
        else:
            inside = inside + product.flop
    return inside, outside, attention_call(model, batch, seq).flop(causal_halved=causal_halved)
