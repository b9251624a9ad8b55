"""A case of torch.distributed made ready: tensors for buffers and the bound call; backends add how it is timed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyperf_suite.workloads.collective.data import POISON_BYTE, RankData, Stored
from pyperf_suite.workloads.collective.parameters import CollectiveParameters
from pyperf_suite.workloads.collective.torch_calls import Binder
from pyperf_suite.workloads.dtypes import element_type
from pyperf_suite.workloads.workload import BUILD_ON_EACH_OTHER, Checked, Kernel, Transfers


class TorchTransfers(Transfers):
    """One rank's tensors and the call; subclasses time it by the clock that sees it."""

    def __init__(self, parameters: CollectiveParameters, rank: int, process_group: Any, device: str, path: str) -> None:
        torch: Any = importlib.import_module("torch")
        self.torch = torch
        self.process_group = process_group
        self.takes_part = parameters.takes_part(rank)
        self.unchecked = "" if parameters.repeatable else BUILD_ON_EACH_OTHER
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

    def poison(self, index: int | None = None) -> None:
        self._data.fill(*self._memories())

    def left(self, index: int = 0) -> Checked:
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


# Elements that are compared at once on a GPU, where each step costs a launch, and on the host.
CHUNK, HOST_CHUNK = 1 << 24, 1 << 20


@dataclass(frozen=True)
class TensorMemory:
    """A tensor as data.Memory."""

    tensor: Any
    dtype: str

    @property
    def is_on_host(self) -> bool:
        """Whether the host's cores are those that compare."""
        return bool(self.tensor.device.type == "cpu")

    def poison(self) -> None:
        self._bytes.fill_(POISON_BYTE)

    def repeat(self, first: int, values: Stored, count: int) -> None:
        bits, period = self._bits[first : first + count], self._uploaded(values)
        whole = count - count % len(period)
        bits[:whole].view(-1, len(period)).copy_(period.expand(whole // len(period), -1))
        bits[whole:].copy_(period[: count - whole])

    def outside(self, first: int, low: Stored, high: Stored, count: int) -> tuple[int, int]:
        bits, least, most = self._bits[first : first + count], self._uploaded(low), self._uploaded(high)
        chunk = CHUNK
        if self.is_on_host:
            # numpy compares several times as fast as torch does here, in pieces that stay in a cache.
            bits, least, most, chunk = bits.numpy(), least.numpy(), most.numpy(), HOST_CHUNK
        exact, period = np.array_equal(low, high), len(low)
        length = max(1, chunk // period) * period
        wrong, first_wrong = 0, -1
        for begin in range(0, count, length):
            part = bits[begin : begin + length]
            whole = len(part) - len(part) % period
            for at, found in ((begin, part[:whole].reshape(-1, period)), (begin + whole, part[whole:])):
                width = found.shape[-1]
                # Signed here, as torch has it: what is not negative is in the same order, NaN of sign 1 below it.
                bad = found != least[:width] if exact else (found < least[:width]) | (found > most[:width])
                if bad.any():
                    places = bad.reshape(-1).nonzero()
                    first_wrong = first_wrong if first_wrong >= 0 else at + int(places[0].reshape(-1)[0])
                    wrong += int(bad.sum())
        return wrong, first_wrong

    def read(self, first: int, count: int) -> Stored:
        storage = element_type(self.dtype).storage
        begin, end = (place * element_type(self.dtype).size_bytes for place in (first, first + count))
        read: Stored = self._bytes[begin:end].cpu().numpy().view(storage)
        return read

    def _uploaded(self, values: Stored) -> Any:
        import torch

        bits = values.view(f"i{values.itemsize}").copy()  # torch takes no array that cannot be written
        return torch.from_numpy(bits).to(self.tensor.device)

    @property
    def _bits(self) -> Any:
        """The elements as integers: numpy has no bfloat16 and no float8, so bits are what both understand."""
        import torch

        return self.tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[element_type(self.dtype).size_bytes])

    @property
    def _bytes(self) -> Any:
        import torch

        return self.tensor.view(torch.uint8)


def _closed() -> None:
    raise RuntimeError("These transfers are closed.")
