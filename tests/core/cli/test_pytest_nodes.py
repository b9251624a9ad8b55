"""Tests of what a test's parameters are called in records: by value, so that a list may change around them."""

import itertools

import pytest

pytest_plugins = ("pytester",)

HEAD = """
import collections, dataclasses, functools
import numpy as np
import pytest

class Table:
    def __call__(self, x): return x

class Point:
    def __init__(self, x): self.x = x
    def __repr__(self): return f"Point({self.x})"
    def norm(self): return self.x

@dataclasses.dataclass
class Pair:
    left: object
    right: object

Row = collections.namedtuple("Row", "left right")

class Placed:
    def __repr__(self): return f"<Placed {id(self):X}>"

class Silent:
    def __repr__(self): raise KeyError("none")

def own(x, power=1): return x

def power_of(n):
    def power(x): return x ** n
    return power

@functools.wraps(own)
def wrapped(x): return own(x)
"""


@pytest.fixture
def cases(pytester):
    """By pytest's id, the parameters of the tests over these values, as Python writes them; and what needs an id."""
    from pyperf_suite.pytest_plugin.nodes import nodes_of

    numbers = itertools.count()

    def of(values, decorator="@pytest.mark.parametrize('t', [{}])"):
        source = f"{HEAD}\n{decorator.format(values)}\ndef test_it(t): pass\n"
        path = pytester.makepyfile(**{f"test_{next(numbers)}": source})
        items = pytester.genitems([pytester.getpathnode(path)])
        nodes = nodes_of(items).values()
        return [node.planned().case.to_json()["parameters"] for node in nodes], {node.unnamed for node in nodes}

    return of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("True", True),
        ("'word'", "word"),
        ("None", "None"),
        ("(2, 3)", "(2, 3)"),
        ("[1, 'a']", "[1, 'a']"),
        ("abs", "abs"),
        ("np.float32", "float32"),
        ("np.dtype('f4')", "float32"),
        ("own", "own"),
        ("wrapped", "own"),
        ("np.linalg.norm", "numpy.linalg.norm"),
        ("Point(3)", "Point(3)"),
        ("Point(3).norm", "Point(3).norm"),
        ("functools.partial(own, 3, power=2)", "own(3, power=2)"),
        ("power_of(3)", "power_of.<locals>.power(3)"),
        ("Table", "Table"),
    ],
)
def test_a_parameter_goes_by_its_value_whatever_stands_before_it(cases, value, text):
    assert cases(value) == ([{"t": text}], {()})
    assert cases(f"'another', {value}")[0][1] == {"t": text}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("np.zeros(5_000)", "np.zeros(50_000)"),
        ("np.zeros(5_000)", "np.zeros(5_000, 'f4')"),
        ("np.zeros((50, 100))", "np.zeros((100, 50))"),
        ("np.arange(5_000)", "np.arange(5_000)[::-1]"),
        ("[np.zeros(5_000)]", "[np.zeros(50_000)]"),
        ("{'x': np.zeros(5_000)}", "{'x': np.zeros(50_000)}"),
        ("Pair(1, np.zeros(5_000))", "Pair(1, np.zeros(50_000))"),
        ("Row(1, np.zeros(5_000))", "Row(1, np.zeros(50_000))"),
        ("Row(1, np.array([1.0]))", "Row(1, np.array([1.0 + 1e-12]))"),
        ("functools.partial(own, 3)", "functools.partial(own, 4)"),
        ("functools.partial(own, np.zeros(5_000))", "functools.partial(own, np.ones(5_000))"),
        ("power_of(2)", "power_of(3)"),
        ("functools.cache(power_of(2))", "functools.cache(power_of(3))"),
        ("np.linalg.norm", "np.ma.MaskedArray.mean"),
        ("Point('x' * 100)", "Point('x' * 101)"),
        ("list(range(100))", "list(range(101))"),
        ("Point(1).norm", "Point(2).norm"),
    ],
)
def test_values_that_differ_are_two_cases_and_equal_ones_are_the_same_in_another_list(cases, left, right):
    (first, second), unnamed = cases(f"{left}, {right}")
    assert first != second
    assert "id" not in first | second
    assert unnamed == {()}
    assert cases(f"None, {right}, {left}")[0][1:] == [second, first]


@pytest.mark.parametrize(
    "value",
    ["Table()", "Silent()", "Placed()", "lambda x: x", "Table().__init__", "functools.partial(Table(), 1)"],
)
@pytest.mark.parametrize(
    "decorator",
    [
        "@pytest.mark.parametrize('t', [{}])",
        "@pytest.mark.parametrize(argnames='t', argvalues=[{}])",
        "@pytest.fixture(params=[{}])\ndef t(request): return request.param\n",
    ],
)
def test_the_series_of_an_object_without_a_text_end_where_the_list_changes(cases, value, decorator):
    before, unnamed = cases(f"{value}, {value}", decorator)
    after, _ = cases(f"{value}, {value}, {value}", decorator)
    assert unnamed == {("t",)}
    assert len({str(case) for case in (*before, *after)}) == 5


# As pytest-repeat does it.
REPEAT = """
import pytest

def pytest_addoption(parser):
    parser.addoption("--count", type=int, default=1)

@pytest.fixture
def __pytest_repeat_step_number(request):
    return request.param

@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc):
    count = metafunc.config.option.count
    if count > 1:
        name = "__pytest_repeat_step_number"
        metafunc.fixturenames.append(name)
        metafunc.parametrize(name, range(count), indirect=True, ids=lambda i: f"{i + 1}-{count}")
"""


@pytest.mark.parametrize(
    "source",
    [
        "def test_it(): pass",
        "@pytest.mark.parametrize('t', [Table(), 1])\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(t, n): pass",
        "@pytest.fixture(params=[Table(), Table()])\ndef t(request): return request.param\ndef test_it(t): pass",
        "@pytest.mark.parametrize('t', [np.zeros(8), np.zeros(16)[::2]], ids=['1-2', '2-2'])\ndef test_it(t): pass",
    ],
    ids=["plain", "marks", "fixture", "ids"],
)
def test_repetitions_are_one_case_whose_name_is_that_of_the_test_alone(pytester, source):
    from pyperf_suite.pytest_plugin.nodes import nodes_of

    pytester.makeconftest(REPEAT)
    path = pytester.makepyfile(f"{HEAD}\n{source}\n")

    def collected(*arguments):
        items, _ = pytester.inline_genitems(path, *arguments)
        return [node.planned().case.to_json() for node in nodes_of(items).values()]

    once = collected()
    assert collected("--count=3") == [case for case in once for _ in range(3)]


def test_an_object_with_an_id_of_its_own_keeps_it(cases):
    (first, second), unnamed = cases("pytest.param(Table(), id='small'), pytest.param(lambda x: x, id='large')")
    assert (first, second, unnamed) == ({"id": "small"}, {"id": "large"}, {()})


def test_the_parameter_that_needs_an_id_is_named_once(pytester):
    pytester.makepyfile(
        f"{HEAD}\n@pytest.mark.parametrize('t', [Table(), Table()])\ndef test_it(benchmark, t): benchmark(len, '')\n"
    )
    shown = pytester.runpytest("--suite-measure", "--collect-only", "-W", "error").stdout.str()
    assert shown.count("no text tells the values of t apart") == 1
    assert "pytest.param(value, id='name')" in shown
