import itertools
import math
import random
import subprocess
import sys

import pytest

from pyperf_suite.user_kernels.guards import SEEN_CHANCE, _chance_of, recognises


def in_a_process(program: str) -> str:
    """Return the output of a program that begins with guards that watch."""
    begin = "import sys\nfrom pyperf_suite.user_kernels.guards import Guards\n"
    begin += "guards = Guards()\nsys.meta_path.insert(0, guards)\n"
    done = subprocess.run([sys.executable, "-c", begin + program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_nothing_is_replaced_where_nobody_replaced_it():
    assert in_a_process("import numpy, logging, concurrent.futures\nprint(guards.replaced())") == "[]"


@pytest.mark.parametrize(
    ("patch", "named"),
    [
        ("import time; time.perf_counter_ns = lambda: 0", "time.perf_counter_ns"),
        ("import builtins; builtins.abs = id", "builtins.abs"),
        ("import numpy; numpy.allclose = lambda *a: True", "numpy.allclose"),
        ("import numpy; numpy.allclose = numpy.array_equal", "numpy.allclose"),
        (
            "from pyperf_suite.user_kernels import guards as g; g.Guards.find_spec = lambda *a: None",
            "pyperf_suite.user_kernels.guards.Guards.find_spec",
        ),
        ("import threading; threading.Thread.start.__code__ = (lambda self: None).__code__", "threading.Thread.start"),
        ("import sys, types; sys.modules['time'] = types.ModuleType('time')", "time"),
    ],
)
def test_what_was_replaced_is_named(patch, named):
    assert in_a_process(f"{patch}\nprint(guards.replaced())") == f"['{named}']"


def test_a_module_is_remembered_as_it_is_when_its_import_ends():
    program = "import numpy as np\nkept = {each[2]: each[3] for each in guards._kept if each[0] == 'numpy'}\n"
    assert in_a_process(f"{program}print(kept['allclose'] is np.allclose)") == "True"


@pytest.mark.slow
def test_what_torch_replaces_for_its_compiler_is_not_named():
    pytest.importorskip("torch")
    program = "import torch, torch._dynamo\nassert not guards.replaced()\ntorch.random.manual_seed = print\n"
    assert in_a_process(f"{program}print(guards.replaced())") == "['torch.random.manual_seed']"


@pytest.mark.slow
def test_a_method_that_hides_a_tensors_own_is_named():
    pytest.importorskip("torch")
    program = "import torch\nassert not guards.replaced()\ntorch.Tensor.softmax = torch.Tensor.mine = print\n"
    assert in_a_process(f"{program}print(guards.replaced())") == "['torch.Tensor.softmax']"


@pytest.mark.parametrize(("count", "other_count"), [(2, 3), (4, 4), (5, 3)])
def test_the_chance_of_so_many_inversions_is_the_share_of_orders_that_have_them(count, other_count):
    found = []
    for places in itertools.combinations(range(count + other_count), count):
        others = set(range(count + other_count)) - set(places)
        found.append(sum(b > a for a in places for b in others))
    for inversions in range(count * other_count + 1):
        share = sum(each <= inversions for each in found) / len(found)
        assert _chance_of(inversions, count, other_count) == pytest.approx(share)


def test_a_kernel_that_is_faster_on_what_it_has_seen_is_known_from_one_that_is_not():
    chance = random.Random(1)
    seconds = [[math.exp(chance.gauss(0, 0.1)) for _ in range(16)] for _ in range(3)]
    assert not recognises(seconds[0], seconds[1])
    assert recognises([2 * each for each in seconds[0]], seconds[1])
    assert not recognises(seconds[0], [2 * each for each in seconds[1]])


def test_a_small_but_certain_difference_is_no_recognition():
    assert not recognises([1.1] * 30, [1.0] * 30)


def test_too_few_launches_say_nothing():
    enough = next(count for count in range(2, 100) if 1 / math.comb(2 * count, count) < SEEN_CHANCE)
    assert recognises([2.0] * enough, [1.0] * enough)
    assert not recognises([2.0] * (enough - 1), [1.0] * (enough - 1))


LOOKS = {
    "sys._getframe(1).f_locals": "sys._getframe",
    "inspect.currentframe().f_back": "sys._getframe",
    "gc.get_objects()": "gc.get_objects",
    "sys._current_frames()": "sys._current_frames",
    "(i for i in ()).gi_frame.f_back": "gi_frame",
    "print": "",
    "logging.warning('a line')": "",
    "inspect.signature(print)": "",
    "gc.collect()": "",
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_into_the_frames_or_objects_of_others_is_noted_and_a_librarys_own_is_not(look):
    program = (
        "import gc, inspect, logging, sys\n"
        "from pyperf_suite.user_kernels.audit.kernel_process import InspectionDetector\n"
        f"def kernel():\n    {look}\n"
        "lookout = InspectionDetector()\nkernel()\nunwatched = lookout.noted()\n"
        "lookout.on = True\nkernel()\nlookout.on = False\nprint(unwatched, *lookout.noted())"
    )
    assert in_a_process(program) == f"[] {LOOKS[look]}".strip()
