"""The order in which a stage of a pipeline does the forwards and backwards of its micro-batches."""

from __future__ import annotations

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

    Source: Narayanan et al. 2021, section 2.2.2. With several chunks `micro_batches` is a multiple of `stages`.
    """
    if chunks == 1:
        return one_forward_one_backward(stage, stages, micro_batches)
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
