import threading
import time
from typing import Any

import numpy as np
import pytest

DEADLINE_S = 0.3
# Aborting and giving up take up to a second; the rest is what a busy machine may add.
PATIENCE_S = DEADLINE_S + 10


def all_reduce(nccl: Any, communicator: Any) -> Any:
    buffer = nccl.Buffer(communicator, 400)
    buffer.write(np.ones(100, np.float32))
    return nccl.Collective(communicator, "all_reduce", 100, "float32", buffer, in_place=True)


def alone(nccl: Any) -> Any:
    library = nccl.Library()
    return nccl.Communicator(library, nccl.HostDevice(), library.unique_id(), 0, 1, 20)


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the double fail: fault("hang", operation=3, rank=1)."""
    return lambda kind, operation=0, rank=1: monkeypatch.setenv("FAKE_NCCL_FAULT", f"{kind}@{operation}:{rank}")


def test_a_rank_that_never_comes_ends_the_meeting_at_the_deadline(nccl):
    library = nccl.Library()
    begin = time.monotonic()
    with pytest.raises(nccl.DeadlineExceeded, match=r"On rank 0 of 2, the meeting of all ranks .* within 0\.3 s"):
        nccl.Communicator(library, nccl.HostDevice(), library.unique_id(), 0, 2, DEADLINE_S)
    assert DEADLINE_S <= time.monotonic() - begin < PATIENCE_S


def test_an_error_in_the_background_of_init_is_seen(nccl, ranks, fault):
    fault("init_later")
    _, failed = ranks.outcomes(2, lambda communicator: None, DEADLINE_S)
    assert type(failed) is nccl.NcclError
    assert "the meeting of all ranks (ncclCommInitRankConfig) failed with ncclSystemError" in str(failed)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("synchronise_each", [False, True])
def test_a_rank_that_hangs_in_the_middle_ends_all_at_the_deadline(nccl, ranks, fault, graph, synchronise_each):
    fault("hang", operation=0 if graph else 70)  # what is replayed is queued once

    def program(communicator):
        options = {"synchronise_each": synchronise_each, "graph_calls": int(graph)}
        all_reduce(nccl, communicator).time(200, DEADLINE_S, **options)

    begin = time.monotonic()
    for rank, outcome in enumerate(ranks.outcomes(2, program)):
        assert isinstance(outcome, nccl.DeadlineExceeded)
        assert f"On rank {rank} of 2, all_reduce of 100 float32 did not end within 0.3 s and was aborted" in str(
            outcome
        )
    assert time.monotonic() - begin < PATIENCE_S


def test_a_call_that_is_refused_ends_the_communicator(nccl, ranks, fault):
    fault("refuse")

    def program(communicator):
        with pytest.raises(nccl.NcclError) as raised:
            all_reduce(nccl, communicator).run(DEADLINE_S)
        return str(raised.value), communicator.alive

    (_, alive), (refused, alive_there) = ranks.results(2, program)
    assert "On rank 1 of 2, ncclAllReduce failed with ncclInvalidUsage (5" in refused
    assert not alive
    assert not alive_there


def test_a_group_that_failed_is_closed_so_that_the_thread_can_go_on(nccl, fault):
    fault("refuse", rank=0)
    for _ in range(2):
        communicator = alone(nccl)
        buffers = [nccl.Buffer(communicator, 4) for _ in range(2)]
        ring = nccl.Collective(communicator, "send_receive", 1, "float32", *buffers)
        with pytest.raises(nccl.NcclError, match="ncclGroupEnd failed with ncclInvalidUsage"):
            ring.run(DEADLINE_S)


def test_a_wait_ends_soon_when_another_thread_asks_for_it(nccl, ranks, fault):
    fault("hang", rank=0)

    def program(communicator):
        requested = []

        def ask():
            requested.append(time.monotonic())
            communicator.request_abort("rank 7 has said that it stops")

        timer = threading.Timer(0.1, ask)
        timer.start()
        with pytest.raises(nccl.Aborted, match=r"all_reduce .* was given up: rank 7 has said that it stops"):
            all_reduce(nccl, communicator).run(60)
        timer.join()
        return time.monotonic() - requested[0]

    assert max(ranks.results(2, program)) < 10  # of 60


@pytest.mark.slow
def test_what_not_even_an_abort_ends_is_left_behind(nccl, ranks, fault):
    fault("stuck", rank=0)

    def program(communicator):
        with pytest.raises(nccl.DeadlineExceeded):
            all_reduce(nccl, communicator).run(DEADLINE_S)
        return communicator.lost

    begin = time.monotonic()
    assert ranks.results(2, program) == [True, False]
    assert time.monotonic() - begin < PATIENCE_S


@pytest.mark.parametrize("ending", ["abort", "finalize"])
def test_a_communicator_that_has_ended_takes_no_more_work_and_says_so(nccl, ending):
    communicator = alone(nccl)
    collective = all_reduce(nccl, communicator)
    collective.time(1, 20, graph_calls=1)
    communicator.abort() if ending == "abort" else communicator.finalize(20)
    message = (
        rf"The communicator of rank 0 of 1 was {ending.removesuffix('e')}ed and takes no more work: make a new one"
    )
    for call in (
        lambda: collective.run(1),
        lambda: collective.time(1, 1),
        lambda: collective.time(1, 1, graph_calls=1),
        lambda: nccl.Buffer(communicator, 8),
        lambda: communicator.split(0, 0, 1),
        lambda: communicator.finalize(1),
        communicator.async_error,
    ):
        with pytest.raises(nccl.Aborted, match=message):
            call()
    communicator.abort()  # which has nothing left to do


def test_a_finalize_that_others_do_not_join_ends_at_its_deadline(nccl, ranks):
    met = threading.Event()

    def program(communicator):
        if communicator.rank == 0:
            met.wait(PATIENCE_S)
            return
        try:
            communicator.finalize(DEADLINE_S)
        finally:
            met.set()

    _, outcome = ranks.outcomes(2, program)
    assert isinstance(outcome, nccl.DeadlineExceeded)
    assert "the end of the communicator on all ranks (ncclCommFinalize)" in str(outcome)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"operation": "allreduce"}, "Operation 'allreduce' is unknown: choose all_reduce, all_gather"),
        ({"dtype": "fp32"}, "dtype 'fp32' is unknown: choose int8, uint8"),
        ({"reduction": "mean"}, "Reduction 'mean' is unknown: choose sum, prod, max, min, avg, premulsum"),
        ({"operation": "all_gather", "reduction": "max"}, "all_gather .* reduction max: it reduces nothing"),
        ({"count": 0}, "all_reduce of 0 elements was asked for: ask for 1 to"),
        ({"count": 2**62}, "elements was asked for: ask for 1 to"),
        ({"count": 101}, "all_reduce of 101 float32 needs 404 bytes to send .* the buffer has 400: give a larger"),
        ({"receive": None}, "needs 400 bytes to receive .* the buffer has 0"),
        ({"in_place": True}, "in place with two buffers: give the one as send"),
        ({"operation": "all_to_all", "in_place": True}, "all_to_all was asked for in place and cannot be"),
        ({"root": 1}, "from or to rank 1 was asked for and there are 1"),
        ({"operation": "pairs"}, "pairs was asked for without a pattern"),
        ({"operation": "pairs", "pattern": [(0, 1)]}, r"The pair \(0, 1\) was asked for among 1 ranks"),
        ({"pattern": [(0, 1)]}, "all_reduce was asked for with a pattern: only pairs and ping_pong take one"),
    ],
)
def test_a_collective_that_cannot_be_is_refused_before_it_runs(nccl, options, words):
    communicator = alone(nccl)
    requested = {
        "operation": "all_reduce",
        "count": 100,
        "dtype": "float32",
        "send": nccl.Buffer(communicator, 400),
        "receive": nccl.Buffer(communicator, 400),
    }
    with pytest.raises(ValueError, match=words):
        nccl.Collective(communicator, **(requested | options))
    assert communicator.alive
