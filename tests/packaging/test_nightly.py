"""tools/nightly.py: every step runs, and what failed is named with the command that runs just that."""

from __future__ import annotations

import sys

import pytest

from tools import nightly
from tools.nightly import Step


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The exit code and what is printed of a night with these steps."""

    def night(*steps: Step, options: tuple[str, ...] = ()) -> tuple[int, str]:
        monkeypatch.setattr(nightly, "LOGS", tmp_path / "logs")
        monkeypatch.setattr(nightly, "STEPS", steps)
        monkeypatch.setattr(sys, "argv", ["nightly.py", *options])
        return nightly.main(), capsys.readouterr().out

    return night


def printing(text: str, code: int = 0, **step) -> Step:
    return Step(
        step.pop("name", "made_up"), (sys.executable, "-c", f"print({text!r}); raise SystemExit({code})"), **step
    )


def test_a_night_goes_on_after_a_failure_and_names_single_tests_or_the_step(run, monkeypatch):
    failing = printing("1 failed\nalone: python -m pytest 'a.py::test[x y]'", 1, name="slow", environment={"A": "1"})
    # A step that does more than run tests, as a sanitizer's, has no single test to name.
    built = printing("alone: python -m pytest b.py::test", 1, name="address")
    monkeypatch.setattr(nightly, "tests", lambda: failing.command)
    absent = Step("absent", ("/no/such/program",))
    code, said = run(failing, printing("kaput", 3, name="kills"), absent, built, printing("well", name="fuzz"))
    assert code == 1
    assert "fuzz     passed after 0.0 min" in said
    assert "slow failed; just that:\n  A=1 python -m pytest 'a.py::test[x y]'\n" in said
    for name in ("kills", "absent", "address"):
        assert f"{name} failed; just that:\n  make nightly ONLY={name}\n" in said


def test_repeats_are_left_out_once_and_steps_can_be_chosen(run, capsys):
    steps = printing("", name="slow"), printing("", 1, name="kills", is_repeat=True)
    assert run(*steps)[0] == 1
    assert run(*steps, options=("--once",))[0] == 0
    code, said = run(*steps, options=("kills",))
    assert (code, "slow" in said) == (1, False)
    with pytest.raises(SystemExit, match="2"):
        run(*steps, options=("fuss",))
    assert "there is no step fuss: choose from slow, kills" in capsys.readouterr().err
