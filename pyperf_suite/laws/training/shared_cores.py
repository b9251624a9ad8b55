"""A pipeline whose stages share the cores of one machine: who waits leaves its core to the others.

On GPUs of their own, stages that wait cost as much as stages that work; on few cores they do not, so the usual formula
of the bubble is wrong there, and the schedule is played through instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Action(NamedTuple):
    """Forward or backward of one micro-batch through one of the model's chunks, which are numbered from its input."""

    backward: bool
    chunk: int
    micro_batch: int


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """What a stage does in turn: as many forwards as stages are left, then backward and forward by turns (1F1B).

    Source: Narayanan et al. 2021, section 2.2.1.
    """
    ahead = min(micro_batches, stages - stage)
    forwards = [Action(False, stage, number) for number in range(micro_batches)]
    backwards = [Action(True, stage, number) for number in range(micro_batches)]
    order = forwards[:ahead]
    for number in range(micro_batches - ahead):
        order += [backwards[number], forwards[ahead + number]]
    return order + backwards[micro_batches - ahead :]


def interleaved(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Action]:
    """The same with `chunks` groups of layers a stage, `stages` micro-batches through one after the other.

    Source: Narayanan et al. 2021, section 2.2.2. `micro_batches` is a multiple of `stages`.
    """
    total = micro_batches * chunks
    ahead = min(total, (chunks - 1) * stages + 2 * (stages - 1 - stage))

    def action(number: int, backward: bool) -> Action:
        turn, place = divmod(number, stages * chunks)
        chunk = place // stages
        chunk = chunks - 1 - chunk if backward else chunk
        return Action(backward, chunk * stages + stage, turn * stages + place % stages)

    order = [action(number, False) for number in range(ahead)]
    for number in range(total - ahead):
        order += [action(ahead + number, False), action(number, True)]
    return order + [action(number, True) for number in range(total - ahead, total)]


def played_s(
    orders: Sequence[Sequence[Action]], work_s: Callable[[Action], float], slowdown: Callable[[int], float]
) -> float:
    """Seconds until every stage has done its order, `work_s` of each action being its time with nobody else at work.

    While a stages are at work each takes `slowdown(a)` times as long. A forward waits for that of the chunk before, a
    backward for that of the chunk behind. Raises ValueError for orders that wait for each other for ever.
    """
    last_chunk = max(action.chunk for order in orders for action in order)
    done: set[Action] = set()
    positions = [0] * len(orders)
    left: dict[int, float] = {}
    now = 0.0

    def is_ready(action: Action) -> bool:
        if action.backward:
            before = action._replace(chunk=action.chunk + 1)
            return action.chunk == last_chunk or before in done
        return action.chunk == 0 or action._replace(chunk=action.chunk - 1) in done

    while any(position < len(order) for position, order in zip(positions, orders, strict=True)):
        for stage, order in enumerate(orders):
            if stage not in left and positions[stage] < len(order) and is_ready(order[positions[stage]]):
                left[stage] = work_s(order[positions[stage]])
        if not left:
            raise ValueError("These orders wait for each other for ever.")
        step = min(left.values())
        now += step * slowdown(len(left))
        for stage in list(left):
            left[stage] -= step
            if left[stage] <= 0.0:
                del left[stage]
                done.add(orders[stage][positions[stage]])
                positions[stage] += 1
    return now
