"""Fleets of one identity: who is slow of many, and what is no fleet."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from pyperf_suite.node.fleet import ALL_RATES, CHANCE, compared, deviations, low_cutoff
from pyperf_suite.node.probes.accept import PROBE
from pyperf_suite.record.journal import sealed
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.record import Record
from tests.commands import invoke
from tests.node.made_up import CPU, cpu_node

RUN = "20261122T000000Z-0000"
CHECKS = [f"check {number}" for number in range(6)]


def named(logs: np.ndarray) -> dict[str, set[str]]:
    """Accused nodes with their checks, by the logarithms of rates, a row a node."""
    rows = [[Quantity(rate, "GB/s", rate, rate) for rate in row] for row in np.exp(logs).tolist()]
    rates = {(f"n{n}", "cpu"): dict(zip(CHECKS, row, strict=True)) for n, row in enumerate(rows)}
    found: dict[str, set[str]] = {}
    for check in compared(rates):
        for node, _ in check.slow:
            found.setdefault(node, set()).add(check.what)
    return found


def fleet(seed: int, spread: float = 0.006, nodes: int = 50) -> np.ndarray:
    """Logarithms of rates whose noise is normal, some of it common to all checks of a node."""
    random = np.random.default_rng(seed)
    return random.normal(0, spread, (nodes, len(CHECKS))) + random.normal(0, 0.3 * spread, (nodes, 1))


def test_no_node_of_a_thousand_healthy_ones_is_accused():
    assert [named(fleet(seed)) for seed in range(20)] == [{}] * 20


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 100), marks=pytest.mark.slow)])
def test_a_node_of_fifty_that_is_five_percent_slow_is_found_and_nobody_else(seeds):
    for seed in seeds:
        logs, slow = fleet(seed), seed % 50
        logs[slow] += np.log(0.95)
        found = named(logs)
        assert set(found) == {f"n{slow}"}
        assert ALL_RATES in found[f"n{slow}"]


def test_what_a_node_is_slow_in_is_named_and_rounds_that_were_disturbed_are_not():
    logs = fleet(1)
    logs[7, 2] += np.log(0.9)
    logs[3] += np.log(1.2)  # a fast node is nobody's trouble
    found = named(logs)
    assert list(found) == ["n7"]
    assert CHECKS[2] in found["n7"]
    logs = fleet(4)
    logs[9, 1] += np.log(0.8)
    rates = {(f"n{n}", "cpu"): {"x": Quantity(r, "GB/s", r, r)} for n, r in enumerate(np.exp(logs[:, 1]).tolist())}
    (check,) = compared(rates)
    assert check.slow == [("n9", "cpu")]
    slow = rates["n9", "cpu"]["x"]
    rates["n9", "cpu"]["x"] = Quantity(slow.value, "GB/s", slow.low, 1.0)
    (check,) = compared(rates)
    assert check.slow == []


def test_of_few_nodes_chance_explains_much_and_nobody_is_named_lightly():
    assert named(fleet(3, nodes=3)) == {}
    cutoffs = [low_cutoff(count, CHANCE) for count in (3, 5, 8, 50)]
    assert cutoffs == sorted(cutoffs)
    assert cutoffs[0] < -500
    assert low_cutoff(2, CHANCE) == -np.inf


def write(folder: Path, records: list[Record]) -> Path:
    """A run's folder with these records as its acceptance."""
    folder.mkdir(parents=True)
    accepted = [Record(**{**vars(each), "probe": PROBE.name}) for each in records]
    (folder / "records.jsonl").write_bytes(b"".join(map(sealed, accepted)))
    return folder


def collect(folder: Path, nodes: int, slow: int | None = None) -> Path:
    """Make a folder with results of `nodes` nodes, one of which is slow in everything."""
    for n in range(nodes):
        records = cpu_node(lambda case, _: 1.1 if n == slow else 1.0, seed=n, noise=0.003)  # noqa: B023 - called at once
        write(folder / f"node{n:02}" / "bench_results" / "cpu-two" / RUN, records)
    return folder


def called(*words: str) -> Result:
    return invoke("accept", *words)


def test_the_slow_node_of_a_folder_is_named_and_the_exit_code_is_one(tmp_path):
    healthy = called("--fleet", str(collect(tmp_path / "healthy", 20)))
    assert (healthy.exit_code, "node" in healthy.output.split("Checks over")[0].split("nodes")[1]) == (0, False)
    found = called("--fleet", str(collect(tmp_path / "one", 20, slow=4)), "--json")
    answer = json.loads(found.stdout)
    assert (found.exit_code, answer["exit_code"], len(answer["nodes"])) == (1, 1, 20)
    cautions = [each["values"] for each in answer["probes"][0]["cautions"]]
    accused = {each["who"].split()[0] for each in cautions if "who" in each}
    assert accused == {"node04"}


def test_of_a_node_with_several_runs_the_newest_counts(tmp_path):
    collect(tmp_path, 20)
    repaired = tmp_path / "node03" / "bench_results" / "cpu-two" / "20261121T000000Z-0000"
    write(repaired, cpu_node(lambda case, _: 2.0, noise=0.003))
    assert called("--fleet", str(tmp_path)).exit_code == 0


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with results of no, one and two nodes, and of machines of two kinds."""
    folder = tmp_path_factory.mktemp("fleets")
    for nodes, name in enumerate(("none", "one", "two", "kinds")):
        (folder / name).mkdir()
        collect(folder / name, nodes)
    others = [Record(**{**vars(each), "identity": CPU | {"slug": "cpu-four"}}) for each in cpu_node()]
    write(folder / "kinds" / "node77" / "bench_results" / "cpu-four" / RUN, others)
    return folder


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--fleet nowhere", "no folder nowhere"),
        ("--fleet two --baseline latest", "--fleet measures nothing"),
        ("--fleet none", "holds no run"),
        ("--fleet one", "results of 1"),
        ("--fleet two", "results of 2"),
        ("--fleet kinds", "cpu-four, cpu-two"),
        ("--baseline nowhere", "nowhere holds no run"),
        ("--baseline latest --results nowhere", "latest holds no run"),
        # Baselines of another machine: refused before anything is measured.
        (f"--device cpu --baseline one/node00/bench_results/cpu-two/{RUN}", "is of cpu-two"),
        ("--budget -5", "'--budget'"),
        ("--budget nan", "'--budget'"),
        ("--device tpu", "tpu"),
    ],
)
def test_bad_input_gets_a_sentence_and_exit_code_two(words, answer, fleets, monkeypatch):
    monkeypatch.chdir(fleets)
    refused = called(*words.split())
    assert refused.exit_code == 2
    assert answer in " ".join(refused.output.split())
    assert "Traceback" not in refused.output
    assert {each.name for each in fleets.iterdir()} == {"none", "one", "two", "kinds"}


def test_values_deviate_from_their_median_in_median_deviations_and_chance_takes_the_lowest_so_far():
    assert deviations([1.0, 2.0, 4.0, 5.0, 10.0]).tolist() == [-1.5, -1.0, 0.0, 0.5, 3.0]
    assert deviations([[2.0, 2.0, 2.0, 1.0], [0.0, 1.0, 2.0, 3.0]]).tolist() == [[0] * 4, [-1.5, -0.5, 0.5, 1.5]]
    # The lowest of three has the least deviation -1 or less; that of 5 in 100 such is known from 40,000 draws.
    assert [low_cutoff(count, 0.05) for count in (1, 2)] == [-math.inf, -math.inf]
    drawn = np.sort(deviations(np.random.default_rng(1).standard_normal((200_000, 3))).min(axis=1))
    assert np.mean(drawn < low_cutoff(3, 0.05)) == pytest.approx(0.05, abs=0.005)
