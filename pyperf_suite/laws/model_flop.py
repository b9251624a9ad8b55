"""The FLOP of a training step of a transformer, and the shares of a peak that they are: MFU and HFU.

Model FLOP are what the mathematics asks for, hardware FLOP what is computed, recomputation included.
"""

from __future__ import annotations

from typing import Any

from pyperf_suite.laws.transformer import ModelDimensions, Recompute, Sizes, attention_calls, check_recompute, products

# Backward computes two gradients for each product of the forward pass.
PASSES = 3


def model_flop(model: ModelDimensions, batch: Sizes, seq: Sizes) -> Any:
    """Forward and backward over `batch` sequences of `seq` tokens: three times the forward pass's products.

    Pairs that a causal mask hides do not count. In most published figures they do (Chowdhery et al. 2022, PaLM,
    appendix B: 6·N + 12·L·H·Q·T a token): those are of the same model without `causal`.
    """
    inside, outside, attention = _forward(model, batch, seq)
    return PASSES * (inside + outside + attention)


def hardware_flop(model: ModelDimensions, batch: Sizes, seq: Sizes, recompute: Recompute) -> Any:
    """What is computed with this much recomputation: of "attention" or "layers" one forward pass more, logits never.

    Raises UserError for another word.
    """
    check_recompute(recompute)
    inside, outside, attention = _forward(model, batch, seq)
    once_more = {"nothing": 0.0, "attention": attention, "layers": inside + attention}[recompute]
    return PASSES * (inside + outside + attention) + once_more


def _forward(model: ModelDimensions, batch: Sizes, seq: Sizes) -> tuple[Any, Any, Any]:
    """FLOP of one forward pass: products inside the layers, those outside, and attention between its projections."""
    inside: Any = 0.0
    outside: Any = 0.0
    for product in products(model, batch * seq, phases=("fprop",)):
        if product.outside_layers:
            outside = outside + product.flop
        else:
            inside = inside + product.flop
    attention = [call.flop() for call in attention_calls(model, batch, seq)]
    return inside, outside, sum(attention[1:], attention[0])
