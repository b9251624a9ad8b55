import json
import sys

import pytest
from click.testing import CliRunner

from pyperf_suite.cli.ab import ab
from pyperf_suite.cli.main import CommandLine
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes import find_probe
from pyperf_suite.regressions.pairs.ab import compare_arms
from pyperf_suite.regressions.pairs.arms import PairedCase
from pyperf_suite.regressions.pairs.live_pair import Pace
from pyperf_suite.regressions.pairs.user_arms import present_arm
from pyperf_suite.regressions.verdict import SequentialRule
from pyperf_suite.user_kernels.declared import kernels_of
from tests.core.repository import Repository
from tools.selfcheck import selfcheck

pytestmark = pytest.mark.slow

CPU = Device("cpu")
BENCH = """
import os
import made_up
import pyperf_suite as suite

@suite.kernel(n=(64, 128))
def squares(n):
    with open(os.environ["TOLD"], "a") as file:
        file.write(f"{made_up.version}\\n")
    return suite.launch({"loop": made_up.squares, "again": made_up.squares}, list(range(n)))
"""
MADE_UP = """
version = VERSION
def squares(values):
    return sum(each * each for each in values)
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of somebody's with two versions of a package, the bench file in the second alone; stood in."""
    monkeypatch.setenv("PYPERF_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    made = Repository(tmp_path / "repository")
    made.commit("v1", **{"made_up.py": MADE_UP.replace("VERSION", "1")})
    made.commit("v2", **{"made_up.py": MADE_UP.replace("VERSION", "2"), "bench.py": BENCH})
    monkeypatch.chdir(made.root)
    return made.root


@pytest.fixture
def run():
    group = CommandLine(commands={"ab": ab})
    given = ("--device", "cpu", "--max-pairs", "1", "--json", "--results", "../results")
    return lambda *arguments: CliRunner().invoke(group, ["ab", *given, *arguments], catch_exceptions=False)


def versions_told(tmp_path):
    return set((tmp_path / "told").read_text().split())


def test_each_side_runs_its_own_revision_of_the_users_repository(repository, run, tmp_path):
    done = run("--old", "v1", "--new", ".", "bench.py:squares", "-a", "n=64", "-a", "implementation=loop")
    message = json.loads(done.stdout)
    assert [each["verdict"] for each in message["findings"]] == ["undecided"], message
    assert message["findings"][0]["probe"] == "bench.py:squares"
    assert versions_told(tmp_path) == {"1", "2"}
    assert any("bench.py is not in v1" in note for note in message["notes"])
    (folder,) = (tmp_path / "results").glob("*/ab-*")
    (pair,) = map(json.loads, (folder / "pairs.jsonl").read_text().splitlines())
    assert pair["old_s"] > 0
    assert pair["new_s"] > 0
    arms = json.loads((folder / "ab.json").read_text())["arms"]
    assert arms["old"]["borrowed"] == ["bench.py"]
    assert arms["new"]["software"]["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--old", "v1", "--new", "v2", "absent.py"), "no file absent.py"),
        (("--old", "v1", "--new", "v2", "bench.py", "baseline"), "baseline is a probe of the suite"),
        (("--old", "v1", "--new", "v2", "bench.py:other"), "squares"),
        (("--old", "v1", "--new", "typo", "bench.py"), "neither a revision"),
        (("--old", "numpy==", "--new", "v2", "bench.py"), "no list of requirements"),
        (("--old", "numpy==1.26.4", "--new", "numpy==2.1.0", "baseline"), "name a FILE.py"),
        (("--old", "m=1", "--new", "m=2", "bench.py"), "no field 'm'"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(repository, run, arguments, words):
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.output


def test_selfcheck_compares_the_users_kernels_with_themselves(repository, tmp_path):
    arguments = ("bench.py", "--max-pairs", "1", "--results", str(tmp_path / "results"))
    done = CliRunner().invoke(selfcheck, [*arguments, "--shifts", "0:2"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    (folder,) = (tmp_path / "results").glob("*/selfcheck-*")
    made = [json.loads(line) for line in (folder / "comparisons.jsonl").read_text().splitlines()]
    assert [each["label"] for each in made] == [f"bench.py:squares[{kernel} n=64]" for kernel in ("loop", "again")]
    refused = CliRunner().invoke(selfcheck, [*arguments, "--shifts", "0,5"])
    assert refused.exit_code == 2
    assert "use --shifts 0" in refused.stderr


def case_in(folder, source, monkeypatch):
    (folder / "bench.py").write_text(f"import pyperf_suite as suite\n{source}")
    monkeypatch.chdir(folder)
    kernels_of.clear()
    (case,) = find_probe("bench.py:kernel").cases("quick", CPU)
    return PairedCase.same("bench.py:kernel", case)


def test_both_sides_of_a_pair_work_on_the_same_inputs_and_each_pair_on_others(tmp_path, monkeypatch):
    source = """
import hashlib
seen = []
def work(x):
    seen.append(hashlib.sha256(x.tobytes()).hexdigest())
    if len(seen) == 100:
        with open("told", "a") as file:
            file.write(" ".join(sorted({each for each in seen if seen.count(each) > 3})) + "\\n")
    return x + 1

@suite.kernel()
def kernel():
    return suite.launch(work, suite.rand(64), reference=lambda x: x + 1.0)
"""
    case, arm = case_in(tmp_path, source, monkeypatch), present_arm(tmp_path)
    compare_arms(arm, arm, [case], CPU, SequentialRule(looks=(2,)), pace=Pace(slice_s=0.005, total_s=0.02))
    told = sorted(filter(None, (tmp_path / "told").read_text().splitlines()))
    assert len(told) == 4
    assert told[0] == told[1] != told[2] == told[3]
