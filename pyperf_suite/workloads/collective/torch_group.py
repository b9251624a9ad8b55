"""Process groups of torch, made from the store that the ranks share."""

from __future__ import annotations

import datetime
import importlib
from typing import Any

from pyperf_suite.errors import Unsupported
from pyperf_suite.ranks.group import Group
from pyperf_suite.ranks.store import connect
from pyperf_suite.workloads.collective.agreement import agree, connect_together

# Longer than any deadline of ours: the watchdog, which knows who is missing, is to speak first.
TORCH_PATIENCE_S = 3600.0

# The process groups that this process is in, by backend: it belongs to one group of ranks for as long as it lives.
_JOINED: dict[str, Any] = {}


def process_group(group: Group, backend: str, deadline_s: float, device: str = "cpu") -> Any:
    """The process group of torch with all ranks (None is its default), made when first asked for, by all together.

    Raises Unsupported on all ranks where this torch lacks the backend on any, and RanksMissing where ranks do not come.
    """
    if backend in _JOINED:
        return _JOINED[backend]
    distributed: Any = importlib.import_module("torch.distributed")
    agree(group, f"look for {backend}", lambda: _require(distributed, backend), deadline_s)
    # A client of its own, as torch's threads may ask while this one waits; and keys that nobody else writes.
    store = distributed.PrefixStore(f"process_group/{backend}", connect(group.environment, deadline_s))

    def join() -> Any:
        options = {}
        if device != "cpu":
            torch: Any = importlib.import_module("torch")
            torch.cuda.set_device(device)
            # NCCL then connects here, within the deadline, and not in the first collective of some of the ranks.
            options["device_id"] = torch.device(device)
        timeout = datetime.timedelta(seconds=TORCH_PATIENCE_S)
        if distributed.is_initialized():
            return distributed.new_group(backend=backend, timeout=timeout, **options)
        distributed.init_process_group(
            backend, store=store, rank=group.rank, world_size=group.count, timeout=timeout, **options
        )
        return None  # the default group: a call that names it takes longer, which nobody's script does

    _JOINED[backend] = connect_together(group, f"connect by {backend}", join, deadline_s)
    return _JOINED[backend]


def _require(distributed: Any, backend: str) -> None:
    """Raise Unsupported where this torch lacks the backend, or cannot use the GPU that it needs."""
    if not getattr(distributed, f"is_{backend}_available")():
        raise Unsupported(f"This torch was built without {backend}.")
    torch: Any = importlib.import_module("torch")
    if backend == "nccl" and not torch.cuda.is_available():
        raise Unsupported(f"This torch ({torch.__version__}) cannot use the GPU.")
