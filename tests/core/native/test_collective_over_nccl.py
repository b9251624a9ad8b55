"""Collectives as cases of NCCL, in ranks that torchrun starts, over the double of libnccl: exact, or lost by name."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.record.case import Case
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.runner.workers import WorkerPool
from pyperf_suite.workloads.collective import DTYPES, OPERATIONS, CollectiveParameters
from pyperf_suite.workloads.collective.nccl import _open

pytestmark = pytest.mark.slow

SMALL = CollectiveParameters("all_reduce", 4096, 2)


@pytest.fixture
def double(nccl, fake_libnccl) -> Path:
    """The newest double in libnccl's place; torch starts the ranks and hosts their store."""
    pytest.importorskip("torch.distributed")
    return fake_libnccl()


@pytest.fixture(scope="module")
def pool(fake_libnccl) -> Iterator[WorkerPool]:
    """Groups of ranks over that double, which stay alive from test to test."""
    with pytest.MonkeyPatch.context() as patch, WorkerPool(resolve("cpu"), 15) as workers:
        patch.setenv("PYPERF_LIBNCCL", str(fake_libnccl()))
        yield workers


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_operation_and_type_is_exact_as_call_and_as_graph(double, pool, ranks):
    for op, operation in OPERATIONS.items():
        if ranks == 1 and op in ("ping_pong", "bisection", "pairs"):
            continue
        root = ranks - 1 if operation.has_root else 0
        for dtype in DTYPES:
            if dtype.startswith("float8") and operation.reduces:
                continue  # arithmetic that the double does not have
            for in_place in (False, True) if operation.in_place else (False,):
                parameters = CollectiveParameters(op, 480 * ranks, ranks, dtype, in_place, root=root)
                name = "nccl_graph" if in_place else "nccl"
                answer = pool.measure(0, Case("collective", parameters, name), None)
                assert answer["outcome"] == "ok", (parameters, answer)
                assert answer["verification"]["compared"] == sum(map(parameters.receive_count, range(ranks)))


@pytest.mark.parametrize("name", ["nccl", "nccl_graph"])
def test_a_record_says_which_library_ran_what_and_how_each_rank_saw_it(pool, double, name):
    parameters = CollectiveParameters("all_reduce", 4096, 2, in_place=True, peer_to_peer=False, registered=True)
    answer = pool.measure(0, Case("collective", parameters, name), QUICK.effort)
    assert answer["outcome"] == "ok", answer
    assert answer["kernel"] == {
        "name": "ncclAllReduce",
        "path": "nccl",
        "details": {
            "nccl": "2.32.3",
            "library": str(double),
            **({"graph": True, "calls_per_graph": 1} if name == "nccl_graph" else {"thread_per_call": True}),
            "registered": True,
            "settings": {"NCCL_P2P_DISABLE": "1"},
        },
    }
    assert answer["metrics"]["time"]["value"] > 0
    assert all(answer["sampling"]["rank_median_s"])


@pytest.mark.parametrize(
    ("changed", "calls"), [({}, 16), ({"in_place": True}, 1), ({"bytes": 2 << 20}, 1), ({"op": "all_gather"}, 16)]
)
def test_a_short_message_is_timed_in_a_graph_of_many_calls_where_that_leaves_what_one_does(
    pool, double, changed, calls
):
    parameters = replace(SMALL, **changed)
    answer = pool.measure(0, Case("collective", parameters, "nccl_graph"), QUICK.effort)
    assert answer["outcome"] == "ok", answer
    assert answer["kernel"]["details"]["calls_per_graph"] == calls
    sampling, samples = answer["sampling"], len(answer["metrics"]["time"]["samples"])
    taken = samples * sampling["launches_per_sample"] + sampling["warmup_launches"]
    assert sampling["iterations"] == calls * taken


@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "reduce", "ping_pong"])
def test_windows_are_made_by_all_ranks_whoever_sends_and_receives(pool, double, op):
    # Rank 2 has nothing to send and nothing to receive in ping_pong.
    parameters = CollectiveParameters(op, 4096, 3, symmetric=True, root=1 if OPERATIONS[op].has_root else 0)
    answer = pool.measure(0, Case("collective", parameters, "nccl"), QUICK.effort)
    assert answer["outcome"] == "ok", answer
    assert answer["kernel"]["details"]["symmetric"] is True


def test_ranks_have_a_communicator_for_each_of_the_settings_side_by_side(pool, double):
    for settings, blocks in (("", False), ("blocking=1", True), ("CTAPolicy=2+maxCTAs=8", False), ("", False)):
        answer = pool.measure(0, Case("collective", replace(SMALL, settings=settings), "nccl"), QUICK.effort)
        assert answer["outcome"] == "ok", answer
        details = answer["kernel"]["details"]
        assert details["thread_per_call"] is not blocks
        assert details.get("configuration", {}) == replace(SMALL, settings=settings).configuration


def test_what_a_version_lacks_is_made_of_sends_or_refused(double, fake_libnccl, monkeypatch):
    monkeypatch.setenv("PYPERF_LIBNCCL", str(fake_libnccl(21400)))
    with WorkerPool(resolve("cpu"), 15) as pool:
        gathered = pool.measure(0, Case("collective", CollectiveParameters("gather", 4096, 2), "nccl"), None)
        assert gathered["kernel"]["name"] == "ncclSend, ncclRecv"
        float8 = CollectiveParameters("all_gather", 4096, 2, "float8_e4m3fn")
        refused = pool.measure(0, Case("collective", float8, "nccl"), None)
        assert refused["outcome"] == "unsupported"
        assert "NCCL 2.14.0 has no float8_e4m3, 2.24 or later has" in refused["reason"]
        registered = CollectiveParameters("all_reduce", 4096, 2, registered=True)
        refused = pool.measure(0, Case("collective", registered, "nccl"), None)
        assert refused["outcome"] == "unsupported"
        assert "cannot register buffers, 2.19 and later can" in refused["reason"]
        windows = pool.measure(0, Case("collective", replace(SMALL, symmetric=True), "nccl"), None)
        assert windows["reason"] == (
            "NCCL 2.14.0 has no symmetric windows, 2.27 and later has: update it, or leave symmetric out."
        )
        policy = pool.measure(0, Case("collective", replace(SMALL, settings="CTAPolicy=2"), "nccl"), None)
        assert policy["reason"] == (
            "NCCL 2.14.0 has no setting CTAPolicy, 2.27.0 or later has: update it, or leave it out."
        )


def test_no_window_is_refused_in_words(double, fake_libnccl, monkeypatch):
    monkeypatch.setenv("PYPERF_LIBNCCL", str(fake_libnccl(23203, "-DFAKE_WITHOUT_WINDOWS")))
    with WorkerPool(resolve("cpu"), 15) as pool:
        answer = pool.measure(0, Case("collective", replace(SMALL, symmetric=True), "nccl"), None)
    assert answer["outcome"] == "unsupported"
    assert "NCCL made no symmetric window of these buffers" in answer["reason"]


def test_a_library_that_is_missing_on_all_ranks_is_said_once(double, monkeypatch):
    monkeypatch.setenv("PYPERF_LIBNCCL", "/nowhere/libnccl.so")
    with WorkerPool(resolve("cpu"), 15) as pool:
        answer = pool.measure(0, Case("collective", SMALL, "nccl"), None)
    assert answer["outcome"] == "unsupported"
    assert "PYPERF_LIBNCCL" in answer["reason"]
    assert not answer["reason"].startswith("Rank")


@pytest.mark.parametrize(
    ("fault", "settings", "words"),
    [
        # Operations of a rank: 0 makes connections, 1 is a barrier, and 2 is what is checked.
        ("wrong@2:1", "", "1 of 2048 values are wrong: rank 1 has 1 of 1024 elements wrong: element"),
        ("hang@2:1", "", "No rank came out of 'check collective"),
        ("error@2:1", "", "Rank 1 failed in 'check collective"),
        ("die@2:1", "", "Rank 1 stopped answering in 'check collective"),
        ("timeout@2:1", "", "ncclTimeout (8, operation timed out"),
        ("init@0:1", "", "Rank 1 failed in 'connect by NCCL'"),
        ("init@0:1", "blocking=1", "Rank 1 failed in 'connect by NCCL'"),
        ("hang@2:1", "blocking=1", "No rank came out of 'check collective"),
    ],
)
def test_a_fault_on_one_rank_ends_the_case_in_words(double, monkeypatch, fault, settings, words):
    monkeypatch.setenv("PYPERF_LIBNCCL", str(double))
    monkeypatch.setenv("FAKE_NCCL_FAULT", fault)
    with WorkerPool(resolve("cpu"), 2) as pool:
        answer = pool.measure(0, Case("collective", replace(SMALL, settings=settings), "nccl"), QUICK.effort)
    assert answer["outcome"] == "failed"
    assert words in answer["reason"], answer["reason"]


@pytest.mark.parametrize(("version", "asking"), [(22200, [0]), (23203, [0, 128, 256])])
def test_one_rank_in_128_gives_an_id_where_the_library_takes_several(
    double, fake_libnccl, monkeypatch, version, asking
):
    monkeypatch.setenv("PYPERF_LIBNCCL", str(fake_libnccl(version)))
    ids = {rank: _open({}, SimpleNamespace(rank=rank), resolve("cpu"))[3] for rank in (0, 1, 127, 128, 129, 256, 299)}
    assert [rank for rank, unique_id in ids.items() if len(unique_id) == 128] == asking
