"""The c10d store that ranks meet at: connected with a deadline, and what goes wrong said in a sentence."""

from __future__ import annotations

import datetime
import importlib
import os
from typing import Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.ranks.environment import RankEnvironment


def connect(environment: RankEnvironment, deadline_s: float) -> Any:
    """A client of the run's store, or its host where this is rank 0 and no launcher hosts it.

    One client serves one thread at a time: a blocked wait blocks it for all. Raises UserError where the store cannot be
    reached or its port is taken, and Unsupported where torch has no distributed package.
    """
    # torch prints a stack trace for every wait that times out, which here is an answer and not an accident.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        distributed: Any = importlib.import_module("torch.distributed")
    except ImportError:
        raise Unsupported("Collectives need torch, which is not installed.") from None
    if not distributed.is_available():
        raise Unsupported("This torch was built without its distributed package.")
    if not environment.launched:
        return distributed.HashStore()
    hosts = environment.rank == 0 and not environment.agent_store
    try:
        store = distributed.TCPStore(
            environment.address,
            environment.port,
            is_master=hosts,
            wait_for_workers=False,
            timeout=datetime.timedelta(seconds=deadline_s),
            multi_tenant=hosts,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(_why(environment, hosts, deadline_s, error)) from None
    # A restarted group must not read what its predecessor left.
    return distributed.PrefixStore(f"pyperf_suite/{environment.restart}", store)


def _why(environment: RankEnvironment, hosts: bool, deadline_s: float, error: Exception) -> str:
    place = f"{environment.address}:{environment.port}"
    said = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
    if hosts:
        return (
            f"Rank 0 cannot host the rendezvous at {place} ({said}): the port may be in use; choose another with "
            "MASTER_PORT."
        )
    return (
        f"Rank {environment.rank} could not reach the rendezvous at {place} within {deadline_s:g} s ({said}): "
        "is rank 0 up, and does the network let this port through?"
    )
