"""Loaders that hand out every sample once and as written, and whose steps tell waiting from working."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.workloads.training import input_pipeline
from pyperf_suite.workloads.training.input_pipeline import (
    InputPipeline,
    InputPipelineParameters,
    TextFiles,
)
from pyperf_suite.workloads.workload import ExecutionContext

torch = pytest.importorskip("torch")

# Python 3.12 and later warn of any fork beside threads; torch's loader forks as its documentation says.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

CPU = Device("cpu")
SMALL = InputPipelineParameters(files=6, batch=2, step_us=200)


@pytest.fixture
def prepare():
    prepared = []

    def make(parameters: InputPipelineParameters):
        prepared.append(InputPipeline().implementation("torch").prepare(parameters, ExecutionContext(CPU)))
        return prepared[-1]

    yield make
    for steps in prepared:
        steps.close()


def batched(files, order):
    """Batches of two, as a loader would hand them out in that order."""
    for pair in zip(order[::2], order[1::2], strict=True):
        samples = [files[number][1] for number in pair]
        yield torch.tensor(pair), torch.from_numpy(np.stack(samples))


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ([0, 1, 2, 2], "sample 2 came 2 times"),
        ([0, 1, 3, 2, 0, 1], "sample 0 came 2 times"),
        ([0, 1], "sample 2 came 0 times"),
        ([], "sample 0 came 0 times"),
    ],
)
def test_a_sample_that_comes_twice_or_never_is_found(order, sentence, tmp_path):
    files = TextFiles(tmp_path, 4, seed=0)
    checked = files.checked(batched(files, order))
    assert (checked.passed, checked.first) == (False, sentence)
    (numbers, samples), *_ = batched(files, [0, 1])
    assert files.checked([(numbers.flip(0), samples)]).first == "sample 1 is not what was written"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"loaders": 2},
        {"loaders": 1, "persistent": False, "prefetch": 1},
        {"loaders": 2, "files": 5},
    ],
    ids=str,
)
def test_an_epoch_has_every_sample_once(settings, prepare):
    parameters = replace(SMALL, **settings)
    checked = prepare(parameters).check()
    assert (checked.wrong, checked.compared) == (0, parameters.files), checked.first


def test_a_decoder_that_garbles_a_sample_fails_the_case(prepare, monkeypatch):
    steps = prepare(SMALL)
    steps._files.path(3).write_text("zaaaa " * 1024)
    checked = steps.check()
    assert checked.wrong == 1
    assert "sample 3" in checked.first


@pytest.mark.parametrize(("loaders", "model"), [(0, "device"), (1, "device"), (0, "host")])
def test_waiting_and_the_models_step_are_told_apart(loaders, model, prepare):
    steps = prepare(replace(SMALL, loaders=loaders, model=model, step_us=2000))
    for index in range(4):
        steps.launch(index)
    observed = steps.observed()
    assert {name: metric.unit for name, metric in observed.items()} == {
        "wait": "s",
        "model": "s",
        "starved": "1",
        "first_batch": "s",
        "next_epoch": "s",
    }
    assert len(observed["wait"].samples) == len(observed["model"].samples) == 2
    # A sleeping model never takes less than it was told to; of a computed one only that it takes time.
    assert min(observed["model"].samples) >= (0.002 if model == "device" else 1e-5)
    for wait, step, share in zip(*(observed[name].samples for name in ("wait", "model", "starved")), strict=True):
        assert share == pytest.approx(wait / (wait + step))
    assert all(observed[name].samples[0] > 0 for name in ("first_batch", "next_epoch"))


def test_files_are_gone_when_a_case_is_over(prepare):
    steps = prepare(replace(SMALL, loaders=1))
    steps.launch(0)
    folder = steps._files.path(0).parent
    assert folder.is_dir()
    steps.close()
    steps.close()
    assert not folder.exists()


def test_files_are_gone_where_a_case_cannot_be_prepared(prepare, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(input_pipeline, "Model", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare(SMALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [False, True])
def test_batches_reach_a_gpu_as_they_were_written(pinned):
    steps = (
        InputPipeline().implementation("torch").prepare(replace(SMALL, pinned=pinned), ExecutionContext(Device("cuda")))
    )
    steps.launch(0)
    assert steps.check().wrong == 0
    steps.close()
