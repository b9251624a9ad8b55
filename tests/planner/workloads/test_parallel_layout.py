"""Sizes that cannot be cut over ranks are refused in one sentence before anything is measured."""

from __future__ import annotations

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.planner.workloads.parallel_layout import ParallelStepParameters
from pyperf_suite.record.case import Case

RIGHT = {"hidden": 32, "heads": 4, "layers": 2, "seq": 8, "batch": 2, "vocab": 48, "tied": False}
REFUSED = [
    ({"data": 100000}, "data lies between 1 and"),
    ({"data": 1000}, "launch them on several machines"),
    ({"attention": "magic"}, "choose from sdpa, flash, math, explicit"),
    ({"tensor": 3}, "cannot be cut over TP = 3"),
    ({"zero_stage": 4}, "zero_stage lies between 0 and 3"),
    ({"engine": "deepspeed", "tensor": 2}, "data parallelism alone"),
    ({"data": 2, "zero_stage": 1, "offload": "cpu"}, "zero_stage 2 or 3"),
    ({"offload": "cpu"}, "needs shards"),
    ({"engine": "horovod"}, "horovod"),
    ({"zero_stage": 3, "offload": "nvme"}, "nvme"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED)
def test_a_layout_that_cannot_be_is_refused_in_one_sentence(change, sentence):
    with pytest.raises(UserError, match=sentence):
        Case("parallel_step", ParallelStepParameters(**{**RIGHT, **change}), "gloo").validate()
