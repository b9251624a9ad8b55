import json

import pytest
from click.testing import CliRunner, Result

from pyperf_suite.cli.main import main


def run_id(day: int) -> str:
    return f"2026{1 + day // 28:02}{1 + day % 28:02}T000000Z-0001"


@pytest.fixture
def compare(results):
    def invoke(*arguments) -> Result:
        named = ["compare", *map(str, arguments), "--results", str(results)]
        return CliRunner().invoke(main, named, env={"COLUMNS": "200"})

    return invoke


@pytest.fixture
def a_month(write_run):
    """Runs that differ by a few thousandths, three processes each."""
    for day in range(1, 32):
        write_run(run_id(day), [1e-3 * (1 + 0.001 * (day % 3) + 0.0005 * process) for process in range(3)])


def test_a_slower_run_ends_in_exit_code_1_and_one_as_before_in_0(compare, a_month, write_run):
    same = compare("latest~1", "latest", "--margin", "3%")
    write_run(run_id(32), [1.1e-3, 1.1e-3, 1.101e-3])
    slower = compare("latest~1", "latest", "--margin", "3%")
    assert (slower.exit_code, same.exit_code) == (1, 0)
    assert "as 30 runs of its own tell" in slower.output
    assert "1 slower of 1 benchmark" in slower.output
    assert "1 equivalent of 1 benchmark" in same.output


def test_json_names_sides_findings_and_what_was_not_compared(compare, a_month, write_run, make_record):
    other = make_record(run_id(32), 1e-3, case_id="ffff", case={"operator": "matmul", "implementation": "torch"})
    write_run(run_id(32), records=[make_record(run_id(32), 1e-3, process=0, position=0), other])
    message = json.loads(compare("latest~1", "latest", "--json").stdout)
    assert message["old"]["name"].endswith(run_id(31))
    assert message["new"]["commit"] == "a" * 40
    assert message["not_compared"]["only_new"] == ["matmul[torch]"]
    assert [finding["case_id"] for finding in message["findings"]] == ["0123456789abcdef"]
    assert any("Both measured commit aaaaaaaaaaaa" in note for note in message["notes"])


def test_a_newest_run_that_holds_nothing_is_failed_and_not_passed_over(compare, a_month, write_run):
    write_run(run_id(32), [])
    done = compare("latest~1", "latest", "--margin", "3%")
    assert (done.exit_code, compare(run_id(30), run_id(31), "--margin", "3%").exit_code) == (3, 0)
    assert f"{run_id(32)}/records.jsonl, the newest run, holds no record that can be read." in done.output.replace(
        "\n", ""
    )
    assert "1 failed, 1 equivalent" in done.output


def test_a_run_in_which_all_failed_measured_no_commit(compare, write_run):
    for day, seconds in ((1, 1e-3), (2, None)):
        write_run(run_id(day), [seconds], state={"source": {"commit": 40 * str(day), "dirty": False}})
    done = compare("latest~1", "latest")
    assert done.exit_code == 3
    assert "Both measured commit" not in done.output


@pytest.mark.parametrize(("clocks_hz", "is_named"), [([1.75e9] * 20, True), ([1.4e9, 1.75e9] * 10, False)])
def test_a_time_converted_with_an_unknown_elasticity_is_named_in_one_sentence(
    compare, write_run, make_record, results, clocks_hz, is_named
):
    def metric(unit, samples):
        return {"unit": unit, **dict.fromkeys(("value", "low", "high", "q20", "q80"), samples[0]), "samples": samples}

    times = [1e-3 * 1.75e9 / hz for hz in clocks_hz]
    for day in (1, 2):
        record = make_record(
            run_id(day),
            metrics={"time": metric("s", times), "sm_clock": metric("Hz", clocks_hz)},
            sampling={"slices": [4] * 5, "launches_per_sample": 1, "quantile": 0.5},
            state={"gpu": {"maximum_sm_clock_mhz": 1980}},
            work={"flop": 10**9},
        )
        write_run(run_id(day), records=[record])
    tracked = CliRunner().invoke(main, ["track", "--results", str(results)], env={"COLUMNS": "400"})
    for output in (" ".join(compare("latest~1", "latest").output.split()), " ".join(tracked.output.split())):
        # An elasticity of 0.4 in place of 1 gives (1750 / 1500) ** 0.6.
        assert ("differently by up to 9.7 %, with the same code" in output) is is_named
        assert output.count("did not move enough to tell the elasticity") == is_named


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("latest~99", "latest"), "goes back beyond the first run"),
        (("20250101T000000Z-0000", "latest"), "There is no run"),
        (("x" * 9000, "latest"), "There is no run"),
        ((run_id(1), run_id(2)), "times of different machines say nothing about the code"),
        (("latest", "latest"), "name two runs"),
        (("latest", run_id(3)), "name two runs"),
        (("latest~1", "latest", "-k", "cublas"), "holds no benchmark that matches 'cublas'"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence_and_exit_code_2(compare, write_run, arguments, sentence):
    for day, machine in ((1, "cpu-made-up-2c"), (2, "cpu-other-8c"), (3, "cpu-made-up-2c")):
        write_run(run_id(day), [1e-3] * 3, machine=machine)
    done = compare(*arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.output
