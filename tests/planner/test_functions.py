"""Sizing from Python: names of the package, the same answers as the commands, a view for notebooks."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

import pyperf_suite
from pyperf_suite import extensions
from pyperf_suite.cli.main import main
from pyperf_suite.errors import UserError
from pyperf_suite.planner import functions

MODEL = {"layers": 4, "hidden": 2560, "heads": 20, "ffn": 10240, "vocab": 50257, "gated": False}


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(functions).failed == 0


def test_functions_are_names_of_the_package_which_imports_nothing_for_them() -> None:
    assert {"explain", "size", "kernel", "__version__"} <= {*dir(pyperf_suite)} == {*pyperf_suite.__all__}
    program = "import sys, pyperf_suite; dir(pyperf_suite); print(sorted({'numpy', 'click'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_answer_is_what_the_command_prints_and_has_a_view_for_notebooks() -> None:
    product = pyperf_suite.explain(4096, 50257, 2560, gpu="H200")
    printed = CliRunner().invoke(main, ["explain", "4096", "50257", "2560", "--gpu", "H200", "--json"])
    (probe,) = json.loads(printed.stdout)["probes"]
    assert probe["tables"][0]["rows"][0][2] == str(product.better[0].sizes["N"])
    view = product._repr_markdown_()
    assert view.startswith("- Predicted: N = 50264")
    assert "| dimension | now |" in view
    sized = pyperf_suite.size(gpu="H200", vary=("vocab",), **MODEL)
    assert "vocab 50257 -&gt; 50264" in sized._repr_markdown_()


def test_wrong_input_and_an_absent_planner_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="H200"):
        pyperf_suite.explain(1, 1, 1, gpu="H2000")
    with pytest.raises(UserError, match="--vocab"):
        pyperf_suite.size(gpu="H200", layers=1)
    monkeypatch.setattr(extensions, "extensions", lambda group: {})
    monkeypatch.delattr(pyperf_suite, "size", raising=False)
    with pytest.raises(AttributeError, match="pyperf_suite has no 'size' here: a part of it"):
        _ = pyperf_suite.size
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pyperf_suite.nothing  # type: ignore[attr-defined]
