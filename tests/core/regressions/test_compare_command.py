import json

import pytest
from click.testing import CliRunner, Result

from pyperf_suite.cli.main import main


def run_id(day: int) -> str:
    return f"202601{day:02}T000000Z-0001"


@pytest.fixture
def compare(results):
    def invoke(*arguments) -> Result:
        named = ["compare", *map(str, arguments), "--results", str(results)]
        return CliRunner().invoke(main, named, env={"COLUMNS": "200"})

    return invoke


@pytest.fixture
def ten_runs(write_run):
    """Ten runs that differ by a few thousandths, three processes each."""
    for day in range(1, 11):
        write_run(run_id(day), [1e-3 * (1 + 0.001 * (day % 3) + 0.0005 * process) for process in range(3)])


def test_a_slower_run_ends_in_exit_code_1_and_one_as_before_in_0(compare, ten_runs, write_run):
    same = compare("latest~1", "latest", "--margin", "3%")
    write_run(run_id(11), [1.1e-3, 1.1e-3, 1.101e-3])
    slower = compare("latest~1", "latest", "--margin", "3%")
    assert (slower.exit_code, same.exit_code) == (1, 0)
    assert "as 9 runs of its own tell" in slower.output
    assert "1 slower of 1 benchmark" in slower.output
    assert "1 equivalent of 1 benchmark" in same.output


def test_json_names_sides_findings_and_what_was_not_compared(compare, ten_runs, write_run, make_record):
    other = make_record(run_id(11), 1e-3, case_id="ffff", case={"operator": "matmul", "implementation": "torch"})
    write_run(run_id(11), records=[make_record(run_id(11), 1e-3, process=0, position=0), other])
    message = json.loads(compare("latest~1", "latest", "--json").stdout)
    assert message["old"]["name"].endswith(run_id(10))
    assert message["new"]["commit"] == "a" * 40
    assert message["not_compared"]["only_new"] == ["matmul[torch]"]
    assert [finding["case_id"] for finding in message["findings"]] == ["0123456789abcdef"]
    assert any("Both measured commit aaaaaaaaaaaa" in note for note in message["notes"])


@pytest.mark.parametrize(
    ("arguments", "said"),
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
def test_what_cannot_be_compared_is_one_sentence_and_exit_code_2(compare, write_run, arguments, said):
    for day, machine in ((1, "cpu-made-up-2c"), (2, "cpu-other-8c"), (3, "cpu-made-up-2c")):
        write_run(run_id(day), [1e-3] * 3, machine=machine)
    done = compare(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.output
