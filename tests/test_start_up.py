import json
import subprocess
import sys

import pytest

MODEL = "--layers 4 --hidden 1024 --heads 8 --ffn 2816 --vocab 32000"
ANSWER = {"click", "numpy", "rich", *(["tomli"] if sys.version_info < (3, 11) else [])}
# Parts that measure, or read what was measured: a prediction needs none of them.
MEASURING = {"node", "regressions", "probes", "runner", "workloads"}
# Slow to import, and none of them needed to price a product.
SLOW = {
    *("asyncio", "difflib", "importlib.metadata", "multiprocessing", "secrets", "statistics"),
    *("numpy.ma", "numpy.random"),
}


def loaded_by(statement: str) -> tuple[set[str], list[str]]:
    """The modules that a fresh Python has loaded after the statement, and the calibrations that it opened."""
    program = (
        "import io, sys\n"
        "opened = []\n"
        "def note(event, values):\n"
        "    if event == 'open' and str(values[0]).endswith('.npz'): opened.append(str(values[0]))\n"
        "sys.addaudithook(note)\n"
        "out, sys.stdout = sys.stdout, io.StringIO()\n"
        f"try: {statement}\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "found = sorted(sys.modules), opened\n"
        "import json\n"
        "out.write(json.dumps(found))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    modules, opened = json.loads(done.stdout)
    return set(modules), opened


def answering(command: str) -> tuple[set[str], list[str]]:
    return loaded_by(f"import pyperf_suite.__main__ as suite; sys.argv[1:] = {command.split()!r}; suite.main()")


def others(modules: set[str]) -> set[str]:
    """The packages that are neither Python's nor ours, nor there in every process of this environment."""
    usual, _ = loaded_by("pass")
    return {name.partition(".")[0] for name in modules - usual} - set(sys.stdlib_module_names) - {"pyperf_suite"}


def parts(modules: set[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name.startswith("pyperf_suite.")}


def test_importing_the_package_imports_nothing_else():
    modules, _ = loaded_by("import pyperf_suite")
    assert others(modules) == set()
    assert not parts(modules) & MEASURING


def test_help_of_all_commands_needs_click_alone():
    modules, opened = answering("--help")
    assert others(modules) == {"click"}
    # Commands of other parts are found by their entry points.
    usual = loaded_by("import click, importlib.metadata")[0]
    assert not modules & {*SLOW, "json"} - usual
    assert not opened


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "calibration", "measuring"),
    [
        ("explain 4096 50257 4096 --gpu H200", "h200_sxm.npz", set()),
        ("explain 4096 4096 50257 --gpu H100 --layout NN --dtype fp8 --json", "h100_sxm.npz", set()),
        # The constants of a step are those of its framework, of all GPUs together.
        (f"size {MODEL} --gpu L40S", "any_gpu.npz l40s.npz", set()),
        (f"layout {MODEL} --gpu A100 --gpus 8 --global-batch 8", "any_gpu.npz a100_sxm.npz", set()),
    ],
    ids=["explain", "explain as JSON", "size", "layout"],
)
def test_a_prediction_loads_laws_and_the_calibration_of_its_gpu(command, calibration, measuring):
    modules, opened = answering(command)
    assert others(modules) <= ANSWER
    assert parts(modules) & MEASURING == measuring
    if command.startswith("explain"):
        assert not modules & SLOW - loaded_by("import click, importlib.metadata, numpy, rich.console")[0]
    assert [path.rpartition("/")[2] for path in opened] == calibration.split()
