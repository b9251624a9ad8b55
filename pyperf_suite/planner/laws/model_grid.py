"""Models of many sizes at once, as arrays."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.transformer import LARGEST, ModelDimensions, following

# A formula branches on these, so one grid has one of each.
ONE_FOR_ALL = tuple(
    field.name
    for field in fields(ModelDimensions)
    if isinstance(field.default, bool) or field.name in ("experts", "shared_ffn", "latent_rank", "query_rank", "window")
)


class ModelGrid(ModelDimensions):
    """Models whose dimensions are integers or int64 arrays that broadcast together; made by `around`.

    Every property of ModelDimensions is then an array of that shape. What only divides unevenly is not refused: `valid`
    says which of them ModelDimensions would take.
    """

    _heads_fill_hidden: NDArray[np.bool_]

    @classmethod
    def around(cls, model: ModelDimensions, **changes: ArrayLike) -> ModelGrid:
        """The model with some dimensions varied; what followed from them before follows again, as in `resized`.

        Raises UserError for a name that is no dimension and for sizes below 1, ValueError for a dimension that all
        models of a grid must share.
        """
        if shared := changes.keys() & set(ONE_FOR_ALL):
            raise ValueError(f"{min(shared)} is one for all models of a grid")
        varied = {name: np.asarray(sizes, dtype=np.int64) for name, sizes in changes.items()}
        for name, sizes in varied.items():
            if sizes.size and sizes.min() < 1:
                raise UserError(f"A model needs {name} of at least 1, but {sizes.min()} was requested.")
        return cls(**following(model, varied))

    def __post_init__(self) -> None:
        head_dim_follows = isinstance(self.head_dim, int) and not self.head_dim
        fill = self.hidden % self.heads == 0 if head_dim_follows else True
        object.__setattr__(self, "_heads_fill_hidden", np.asarray(fill))
        self._fill_in()

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Where the dimensions are those of a model: within bounds, and dividing as they must."""
        valid = self._heads_fill_hidden & (self.heads % self.kv_heads == 0) & (self.dense_layers <= self.layers)
        valid = valid & (self.windowed_layers <= self.layers)
        for name, most in LARGEST.items():
            valid = valid & (getattr(self, name) <= most)
        return np.asarray(valid)
