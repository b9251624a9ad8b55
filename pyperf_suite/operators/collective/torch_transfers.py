"""A case of torch.distributed made ready: tensors for buffers and the bound call; backends add how it is timed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from pyperf_suite.operators.collective.data import POISON_BYTE, RankData, Stored
from pyperf_suite.operators.collective.parameters import CollectiveParameters
from pyperf_suite.operators.collective.torch_calls import Binder
from pyperf_suite.operators.dtypes import element_type
from pyperf_suite.operators.operator import Checked, Kernel
from pyperf_suite.operators.ranked import Transfers


class TorchTransfers(Transfers):
    """One rank's tensors and the call; subclasses time it by the clock that sees it."""

    def __init__(self, parameters: CollectiveParameters, rank: int, process_group: Any, device: str, path: str) -> None:
        torch: Any = importlib.import_module("torch")
        self.torch = torch
        self.process_group = process_group
        self.takes_part = parameters.takes_part(rank)
        self._data = RankData(parameters, rank)
        dtype = getattr(torch, parameters.dtype)
        self.send: Any
        self.receive: Any
        self.send, self.receive = (
            torch.empty(count, dtype=dtype, device=device) if count else None
            for count in (self._data.send_count, self._data.receive_count)
        )
        bound = Binder(parameters, rank, process_group, *self._input_and_output()).bind()
        self.call = bound.call
        self.kernel = Kernel(bound.function, path, {"torch": torch.__version__})

    def fill(self) -> None:
        self._data.fill(*self._memories())

    def check(self) -> Checked:
        send, receive = self._memories()
        return self._data.check(send if self._data.parameters.in_place else receive)

    def close(self) -> None:
        self.call = _closed
        self.send = self.receive = None

    def _input_and_output(self) -> tuple[Any, Any]:
        """The parts of the buffers that are: in place both are of the send buffer."""
        data, parameters = self._data, self._data.parameters
        inputs, outputs = parameters.send_count(data.rank), parameters.receive_count(data.rank)
        output = self.send if parameters.in_place else self.receive
        return (
            self.send[data.input_at : data.input_at + inputs] if inputs else None,
            output[data.output_at : data.output_at + outputs] if outputs else None,
        )

    def _memories(self) -> tuple[TensorMemory | None, TensorMemory | None]:
        dtype = self._data.parameters.dtype
        send, receive = (
            TensorMemory(tensor, dtype) if tensor is not None else None for tensor in (self.send, self.receive)
        )
        return send, receive


@dataclass(frozen=True)
class TensorMemory:
    """A tensor as data.Memory."""

    tensor: Any
    dtype: str

    def poison(self) -> None:
        self._bytes.fill_(POISON_BYTE)

    def write(self, first: int, values: Stored) -> None:
        import torch

        begin = first * values.itemsize
        # numpy has no bfloat16 and no float8, so bytes are what both understand.
        self._bytes[begin : begin + values.nbytes].copy_(torch.from_numpy(values.view("uint8")))

    def read(self, first: int, count: int) -> Stored:
        storage = element_type(self.dtype).storage
        begin, end = (place * element_type(self.dtype).size_bytes for place in (first, first + count))
        read: Stored = self._bytes[begin:end].cpu().numpy().view(storage)
        return read

    @property
    def _bytes(self) -> Any:
        import torch

        return self.tensor.view(torch.uint8)


def _closed() -> None:
    raise RuntimeError("These transfers are closed.")
