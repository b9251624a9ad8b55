"""The transformer in the precision that it is trained in, and the memory that a step of it and its reference take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware import memory
from pyperf_suite.laws.training.activations import FLOAT, Keeping, kept_bytes
from pyperf_suite.workloads.training.shape import TransformerShape

# How weights are kept and how products are computed: "autocast" keeps float32 weights and casts at each product.
PRECISIONS = ("float32", "tfloat32", "bfloat16", "float16", "autocast_bfloat16", "autocast_float16")

# What the law knows of what attention keeps: torch itself chooses a fused kernel.
ATTENTIONS_KEPT: Mapping[str, Literal["sdpa", "math", "explicit"]] = {
    "sdpa": "sdpa",
    "flash": "sdpa",
    "math": "math",
    "explicit": "explicit",
}

HALF, DOUBLE = 2, 8
MOMENTS = 2  # of AdamW, each in the type of its weight


@dataclass(frozen=True)
class TrainedShape(TransformerShape):
    """A transformer, and one of PRECISIONS."""

    precision: str = "float32"

    @property
    def element(self) -> str:
        """The type that products are computed in."""
        return self.precision.removeprefix("autocast_")

    @property
    def weights(self) -> str:
        """The type that weights are kept in."""
        return self.precision if self.precision in ("bfloat16", "float16") else "float32"

    def keeping(self, device: str) -> Keeping:
        """The same for the law of kept activations, on a "cpu" or a "cuda"."""
        return Keeping(
            element_bytes=FLOAT if self.element in ("float32", "tfloat32") else HALF,
            stream_bytes=FLOAT if self.weights == "float32" else HALF,
            dropout=self.dropout > 0,
            attention=ATTENTIONS_KEPT[self.attention],
            checkpointing=self.checkpointing.kind,
            every=self.checkpointing.every,
            ends=bool(self.vocab),
            device="cuda" if device == "cuda" else "cpu",
        )

    def validate(self) -> None:
        """Raise UserError for a transformer or a precision that cannot be."""
        super().validate()
        if self.precision not in PRECISIONS:
            raise UserError(f"Unknown precision {self.precision!r}: choose from {', '.join(PRECISIONS)}.")

    def state_bytes(self, updated: bool) -> int:
        """Of weights and gradients, and of AdamW's moments where they are `updated`."""
        each = FLOAT if self.weights == "float32" else HALF
        return int(self.dimensions.parameters) * each * (2 + (MOMENTS if updated else 0))

    def step_bytes(self, updated: bool) -> int:
        """The state, and what forward keeps for backward, on either kind of device."""
        kept = kept_bytes(self.dimensions, self.batch, self.seq, self.keeping("cuda"))
        return self.state_bytes(updated) + int(kept.total)

    def require_reference(self, sequences: int) -> None:
        """Raise Unsupported where the host has no room for gradients in float64, of so many sequences at a time.

        Attention is written out; the model is kept, its gradients, the exact ones, rounded ones, and their limits.
        """
        keeping = Keeping(DOUBLE, DOUBLE, attention="explicit", ends=bool(self.vocab))
        kept = kept_bytes(self.dimensions, sequences, self.seq, keeping).total
        require_for_reference(int(self.dimensions.parameters) * 5 * DOUBLE + int(kept))


def require_for_reference(nbytes: int) -> None:
    """Raise Unsupported where the host has not so many bytes left for a result in float64."""
    available = memory.available_bytes()
    if nbytes > available:
        raise Unsupported(
            f"What this is checked by, in float64, takes {nbytes / 1e9:.1f} GB, but {available / 1e9:.1f} GB of memory "
            "are free: ask for smaller dimensions."
        )
