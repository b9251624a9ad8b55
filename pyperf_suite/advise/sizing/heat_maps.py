"""Pictures of the neighbourhood: how fast the model would do its work at each width, beside what it does now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pyperf_suite.advise.sizing.candidates import HEAD_DIMS, width_of_mlp
from pyperf_suite.advise.sizing.prices import Prices
from pyperf_suite.advise.sizing.search import judged
from pyperf_suite.advise.sizing.setting import Setting
from pyperf_suite.errors import UserError
from pyperf_suite.spec.findings import Figure, HeatMap

MOST_COLUMNS, MOST_ROWS, MOST_HEADS = 17, 13, 64
STEP = 64
RATIO = "work a second over the present one's"


def heat_maps(setting: Setting, prices: Prices, gpu: str, reach: float) -> tuple[Figure, ...]:
    """Hidden against heads, and the width of the MLP against the micro-batch; the model as asked is framed."""
    return (_hidden_by_heads(setting, prices, gpu, reach), _ffn_by_micro_batch(setting, prices, gpu, reach))


def _hidden_by_heads(setting: Setting, prices: Prices, gpu: str, reach: float) -> Figure:
    model = setting.model
    hiddens = _sizes(model.hidden, reach, STEP, MOST_ROWS)
    fills = model.heads * model.head_dim == model.hidden
    step = setting.tp if model.kv_heads == model.heads else max(setting.tp, model.kv_heads)
    heads = _sizes(model.heads, 0.5 if fills else reach, step, MOST_HEADS)
    if fills:
        # The columns of most cells: numbers of heads that hardly any width is divided by say nothing.
        heads.sort(key=lambda count: (count != model.heads, -sum(hidden % (8 * count) == 0 for hidden in hiddens)))
        heads = sorted(heads[:MOST_COLUMNS])

    def at(hidden: int, count: int) -> Setting:
        resized = model.resized(hidden=hidden, heads=count)
        if resized.head_dim > max(*HEAD_DIMS, model.head_dim):
            raise UserError(f"No attention kernel has heads of {resized.head_dim}.")
        return replace(setting, model=resized)

    head_dim = "head_dim follows" if fills else f"head_dim {model.head_dim}"
    return Figure(
        name="sizing_hidden_heads",
        title=f"Hidden and heads on {gpu}",
        caption=f"Predicted; {head_dim}, everything else as asked. Grey: no such model.",
        rows=((_map(setting, prices, "heads", "hidden", heads, hiddens, (model.hidden, model.heads), at),),),
    )


def _ffn_by_micro_batch(setting: Setting, prices: Prices, gpu: str, reach: float) -> Figure:
    model, width = setting.model, width_of_mlp(setting.model)
    present = getattr(model, width)
    widths = _sizes(present, reach, STEP * setting.tp, MOST_COLUMNS)
    batches = sorted({max(1, setting.micro_batch // 2), *(setting.micro_batch << power for power in range(4))})

    def at(micro_batch: int, ffn: int) -> Setting:
        return replace(setting, model=model.resized(**{width: ffn}), micro_batch=micro_batch)

    return Figure(
        name="sizing_ffn_micro_batch",
        title=f"Width of the MLP and micro-batch on {gpu}",
        caption="Predicted; everything else as asked. Memory is not looked at here.",
        rows=((_map(setting, prices, width, "micro-batch", widths, batches, (setting.micro_batch, present), at),),),
    )


def _map(
    setting: Setting,
    prices: Prices,
    x_label: str,
    y_label: str,
    x: Sequence[int],
    y: Sequence[int],
    here: tuple[int, int],
    at: Callable[[int, int], Setting],
) -> HeatMap:
    """Every combination that can be trained, priced at once."""
    settings, places = [setting], []
    for row, down in enumerate(y):
        for column, across in enumerate(x):
            try:
                settings.append(at(down, across))
                places.append((row, column))
            except UserError:
                continue  # stays grey
    values = np.full((len(y), len(x)), np.nan)
    for (row, column), candidate in zip(places, judged(settings, prices)[1:], strict=True):
        values[row, column] = candidate.speed
    return HeatMap(
        title="",
        x_label=x_label,
        y_label=y_label,
        value_label=RATIO,
        x=tuple(x),
        y=tuple(y),
        values=tuple(tuple(row) for row in values.tolist()),
        here=(list(y).index(here[0]), list(x).index(here[1])),
    )


def _sizes(present: int, reach: float, step: int, most: int) -> list[int]:
    """Multiples of a step within reach, coarser until they are at most so many, and the present size among them."""
    while 2 * present * reach / step + 1 > most:
        step *= 2
    first = -(-int(present * (1 - reach)) // step) * step
    return sorted({present, *(size for size in range(max(step, first), int(present * (1 + reach)) + 1, step))})
