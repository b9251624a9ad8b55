"""Every number that the probes found in the committed runs, frozen as golden data, is still found.

README.md says how the golden files were made, what a comparison asks for and where an accepted difference is written.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from golden import found
from golden.written import Written, numbers_in, says_the_same

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
RUNS = HERE.parents[1] / "bench_results"
GOLDEN = {f"{path.parent.name}/{path.stem}": path for path in sorted((HERE / "numbers").glob("*/*.json"))}
MOST_SHOWN = 20
CLOSE = 1e-9


def changes() -> list[dict[str, Any]]:
    """The differences that were accepted, with why."""
    return tomllib.loads((HERE / "changed.toml").read_text(encoding="utf-8")).get("changed", [])


@cache
def golden(name: str) -> Mapping[str, Any]:
    """A golden file, with the accepted differences in it."""
    kept = json.loads(GOLDEN[name].read_text(encoding="utf-8"))
    for change in changes():
        if change["probe"] == kept["probe"] and change.get("run", kept["run"]) == kept["run"]:
            kept, _ = changed(kept, change)
    return kept


def changed(kept: Mapping[str, Any], change: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """A golden file after one accepted difference, and how many values or items it touched."""
    kept, touched = dict(copy.deepcopy(kept)), 0
    items, meant = [], itertools.count()
    for item in kept[change["what"]]:
        is_named = change.get("where") in (None, *named(item))
        if not is_named or next(meant) not in change.get("items", range(len(kept[change["what"]]))):
            items.append(item)
        elif "before" not in change:
            touched += 1
        else:
            item, times = replaced(item, change["before"], change["now"])
            items.append(item)
            touched += times
    return kept | {change["what"]: items}, touched


def named(item: Any) -> tuple[str, ...]:
    """Name of a golden item in a difference: a table's title, a claim, a figure, a sentence."""
    return tuple(item[key] for key in ("title", "claim", "figure", "text", "name") if key in item)


def replaced(node: Any, before: Any, now: Any) -> tuple[Any, int]:
    """The data with one value in the place of another, and how many times."""
    if isinstance(node, list | dict):
        pairs = node.items() if isinstance(node, dict) else enumerate(node)
        each = {key: replaced(value, before, now) for key, value in pairs}
        touched = sum(times for _, times in each.values())
        values = {key: value for key, (value, _) in each.items()}
        return (values if isinstance(node, dict) else list(values.values())), touched
    return (now, 1) if node == before and type(node) is type(before) else (node, 0)


def findings(name: str) -> Any:
    """Findings of today by the probe of a golden file on its run."""
    kept = golden(name)
    records = next((root / "records.jsonl" for root in places(kept["run"]) if root.is_dir()), None)
    if records is None:
        pytest.skip(f"run {kept['run']} is not in {RUNS}: the committed runs come with a checkout only")
    by_probe = found.findings_by_probe(records)
    assert kept["probe"] in by_probe, f"{name}: the probe finds nothing in its run any more"
    return by_probe[kept["probe"]]


def places(run: str) -> Iterator[Path]:
    """Yield the folders where a run may be."""
    yield HERE / "made_up" / run
    yield from RUNS.glob(f"*/{run}")


def lost_documents(kept: Sequence[Any], written: Mapping[str, str]) -> Iterator[str]:
    """Each golden document in another tool's form that is another text now."""
    for document in kept:
        if written[document["name"]].splitlines() != document["text"].splitlines():
            yield f"{document['name']} differs"


def lost_cells(kept: Sequence[Any], tables: Sequence[found.Table]) -> Iterator[str]:
    """Each golden row that no table of its title has; a table may have more rows and more columns than golden."""
    for table in kept:
        same_title = [each for each in tables if each.title == table["title"]]
        rows = [row for each in same_title for row in each.rows]
        if not same_title:
            titles = ", ".join(repr(each.title) for each in tables)
            yield f"no table {table['title']!r}; there are: {titles or 'none'}"
            continue
        unused = list(range(len(rows)))
        for place, row in enumerate(table["rows"]):
            first_tried = sorted(unused, key=lambda index, place=place: index != place)
            match = next((index for index in first_tried if first_lost(row, rows[index]) is None), None)
            if match is not None:
                unused.remove(match)
                continue
            nearest = max(unused, key=lambda index: (as_many(row, rows[index]), index == place), default=None)
            if nearest is None:
                yield f"table {table['title']!r}: row {place + 1} is gone: {row}"
                continue
            lost = first_lost(row, rows[nearest])
            beside = rows[nearest][lost] if lost < len(rows[nearest]) else "nothing"
            yield (
                f"table {table['title']!r}, row {place + 1} ({', '.join(row[:3])}), column {table['columns'][lost]!r}: "
                f"golden {row[lost]!r}, found {beside!r} in the nearest row {rows[nearest]}"
            )


def first_lost(row: Sequence[str], cells: Sequence[str]) -> int | None:
    """The first golden cell that does not come in its order; None where all do. Cells between them are passed over."""
    at = 0
    for place, cell in enumerate(row):
        match = next((index for index in range(at, len(cells)) if says_the_same(cell, cells[index])), None)
        if match is None:
            return place
        at = match + 1
    return None


def as_many(row: Sequence[str], cells: Sequence[str]) -> int:
    """How many cells agree place by place."""
    return sum(says_the_same(cell, other) for cell, other in zip(row, cells, strict=False))


def lost_verdicts(kept: Sequence[Any], verdicts: Sequence[found.Verdict]) -> Iterator[str]:
    """Each golden verdict without one of the same claim, source and outcome on the same numbers."""
    unused = list(verdicts)
    for verdict in kept:
        claimed = [each for each in unused if (each.claim, each.source) == (verdict["claim"], verdict["source"])]
        judged = [Written(text) for text in verdict["judged"]]
        same = [each for each in claimed if each.verdict == verdict["verdict"] and in_order(judged, each.measured)]
        if same:
            unused.remove(same[0])
            continue
        others = "; ".join(f"{each.verdict} on {each.measured}" for each in claimed) or "no verdict"
        yield (
            f"claim {verdict['claim']!r}: golden {verdict['verdict']} on {verdict['judged']} "
            f"({verdict['measured']!r}), found {others}"
        )


def in_order(wanted: Sequence[Written], values: Sequence[float]) -> bool:
    """True if the values have the wanted numbers among them, in their order."""
    rest = iter(values)
    return all(any(one.covers(value) for value in rest) for one in wanted)


def lost_numbers(kept: Sequence[Any], values: Sequence[float]) -> Iterator[str]:
    """Each number of a golden sentence that is not among the values; sizes and counts are names, and are left out."""
    said = [(Written(text), sentence["text"]) for sentence in kept for text in sentence["numbers"]]
    for one, sentence in said:
        measured = "." in one.text or "%" in one.text
        if measured and not any(one.covers(value) for value in values):
            nearest = min(values, key=lambda value: abs(value - one.value), default=None)
            yield f"golden {one.text} of {sentence!r} is not found; the nearest number is {nearest}"


def lost_series(kept: Sequence[Any], series: Sequence[found.Series]) -> Iterator[str]:
    """Each golden series without one of its name and points; panels of one title are told apart by their points."""
    unused = list(series)
    for golden_one in kept:
        key = [golden_one[part] for part in ("figure", "panel", "label", "style")]
        candidates = [each for each in unused if list(each[:4]) == key]
        differences = [first_point(golden_one, each) for each in candidates]
        if None in differences:
            unused.remove(candidates[differences.index(None)])
            continue
        # The panel that agrees furthest, of several panels of one title, is meant.
        said = max(differences, key=lambda each: each[0])[1] if differences else "no such series is found"
        yield f"figure {key[0]}, panel {key[1]!r}, series {key[2]!r} ({key[3]}): {said}"


def first_point(kept: Mapping[str, Any], series: found.Series) -> tuple[int, str] | None:
    """How many values agree before the first that does not, and what differs there; None where none does."""
    agreed = 0
    for part in ("x", "y", "low", "high"):
        golden_values, values = kept[part], getattr(series, part)
        if len(golden_values) != len(values):
            return agreed, f"golden has {len(golden_values)} values of {part}, found {len(values)}"
        for place, (one, other) in enumerate(zip(golden_values, values, strict=True)):
            if not close(one, other):
                return agreed, f"{part}[{place}] at x = {kept['x'][place]}: golden {one!r}, found {other!r}"
            agreed += 1
    return None


def close(value: float | None, expected: float) -> bool:
    """Equal but for the last digits of a float; null is NaN in golden files."""
    if value is None or math.isnan(expected):
        return value is None and math.isnan(expected)
    return math.isclose(value, expected, rel_tol=CLOSE, abs_tol=1e-300)


def lost_bars(kept: Sequence[Any], bars: Sequence[found.Bar]) -> Iterator[str]:
    """Each golden bar without one of its name, length, error and mark."""
    for bar in kept:
        key = (bar["figure"], bar["panel"], bar["name"])
        named_so = [each for each in bars if each[:3] == key]
        values = [bar["value"], bar["error"], bar["mark"]]
        if not any(all(map(close, values, each[3:])) for each in named_so):
            yield f"figure {key[0]}, bar {key[2]!r}: golden {values}, found {[list(each[3:]) for each in named_so]}"


def lost_maps(kept: Sequence[Any], maps: Sequence[found.Map]) -> Iterator[str]:
    """Each golden heat map without one of its sizes and values."""
    for heat_map in kept:
        where = f"figure {heat_map['figure']}, heat map {heat_map['panel']!r}"
        same = [each for each in maps if (each.figure, each.panel) == (heat_map["figure"], heat_map["panel"])]
        if not same:
            yield f"{where} is gone"
            continue
        each = same[0]
        if (list(each.x), list(each.y)) != (heat_map["x"], heat_map["y"]):
            yield f"{where}: golden lies over {heat_map['x']} and {heat_map['y']}, found {each.x} and {each.y}"
            continue
        for y, golden_row, row in zip(each.y, heat_map["values"], each.values, strict=True):
            for x, one, other in zip(each.x, golden_row, row, strict=True):
                if not close(one, other):
                    yield f"{where}, x = {x}, y = {y}: golden {one!r}, found {other!r}"


# How each part of a golden file is compared with what is found.
PARTS: dict[str, tuple[Callable[..., Iterator[str]], Callable[[Any], Any]]] = {
    "tables": (lost_cells, found.tables),
    "verdicts": (lost_verdicts, found.verdicts),
    "sentences": (lost_numbers, found.numbers),
    "series": (lost_series, found.points),
    "bars": (lost_bars, found.bars),
    "heat_maps": (lost_maps, found.heat_maps),
    "documents": (lost_documents, found.documents),
}


@pytest.mark.parametrize(
    ("part", "name"),
    [
        pytest.param(part, name, marks=[pytest.mark.slow] * (part == "tables"), id=f"{part}-{name}")
        for part in PARTS
        for name in GOLDEN
        if golden(name)[part]
    ],
)
def test_every_golden_number_is_still_found(part, name):
    lost, now = PARTS[part]
    said = list(lost(golden(name)[part], now(findings(name))))
    more = [f"... and {len(said) - MOST_SHOWN} more"] if len(said) > MOST_SHOWN else []
    assert not said, "\n".join(["", *(f"{name}: {line}" for line in said[:MOST_SHOWN]), *more])


def test_every_accepted_difference_says_why_and_touches_a_golden_value():
    for change in changes():
        assert change["why"].strip()
        requested = [json.loads(path.read_text(encoding="utf-8")) for path in GOLDEN.values()]
        meant = [
            kept
            for kept in requested
            if kept["probe"] == change["probe"] and change.get("run", kept["run"]) == kept["run"]
        ]
        assert sum(changed(kept, change)[1] for kept in meant) > 0, f"nothing golden is meant by {change}"


def test_an_accepted_difference_takes_the_place_of_the_golden_value_where_it_is_named():
    kept = {"tables": [{"title": "a", "rows": [["1.5", "2"]]}, {"title": "b", "rows": [["1.5"]]}]}
    after, touched = changed(kept, {"what": "tables", "where": "b", "before": "1.5", "now": "1.6"})
    assert (after["tables"][0]["rows"], after["tables"][1]["rows"], touched) == ([["1.5", "2"]], [["1.6"]], 1)
    twice = {"tables": [{"title": "a", "rows": [["1.5"]]}, {"title": "a", "rows": [["1.5"]]}]}
    after, touched = changed(twice, {"what": "tables", "where": "a", "items": [1], "before": "1.5", "now": "1.6"})
    assert ([table["rows"] for table in after["tables"]], touched) == ([[["1.5"]], [["1.6"]]], 1)
    after, touched = changed(kept, {"what": "tables", "where": "a"})
    assert ([table["title"] for table in after["tables"]], touched) == (["b"], 1)


@pytest.mark.parametrize(
    ("kept", "cell", "same"),
    [
        ("1.25 [1.20, 1.31]", "1.2519 [1.2044, 1.3091]×", True),
        ("1.25 [1.20, 1.31]", "1.2619 [1.2044, 1.3091]", False),
        ("1.25 [1.20, 1.31]", "1.25", False),
        ("249", "248.93 us", True),
        ("249", "248.4", False),
        ("10 x 128", "10×128", True),
        ("leave it", "Leave it.", True),
        ("leave it", "undecided", False),
        ("-", "", True),
        ("-", "0", False),
    ],
)
def test_a_writing_with_more_digits_is_the_same_and_another_value_is_not(kept, cell, same):
    assert says_the_same(kept, cell) is same
    assert [one.value for one in numbers_in("-39%, 2.5 -> 3, 4x1024, 19,078, 6.7e9, GPT-3")] == [
        *(-39, 2.5, 3, 4, 1024, 19078, 6.7e9, 3),
    ]


@pytest.mark.parametrize(
    ("compare", "kept", "same", "changed"),
    [
        (
            lost_cells,
            [{"title": "t", "columns": ["a", "b"], "rows": [["x", "1.50"]]}],
            found.Table("t", ["a", "new", "b"], [["X", "7", "1.4951"]]),
            found.Table("t", ["a", "b"], [["x", "1.51"]]),
        ),
        (
            lost_verdicts,
            [{"claim": "c", "source": "s", "verdict": "undecided", "judged": ["1.25"], "measured": "m"}],
            found.Verdict("c", "s", "undecided", [3.0, 1.2519]),
            found.Verdict("c", "s", "claim holds", [1.25]),
        ),
        (lost_numbers, [{"text": "t", "numbers": ["16.1"]}], 16.0501, 16.2),
        (
            lost_series,
            [{"figure": "f", "panel": "p", "label": "l", "style": "line", "x": [1], "y": [2.0], "low": [], "high": []}],
            found.Series("f", "p", "l", "line", [1.0], [2.0 + 1e-12], [], []),
            found.Series("f", "p", "l", "line", [1.0], [2.0 + 1e-6], [], []),
        ),
        (
            lost_bars,
            [{"figure": "f", "panel": "p", "name": "n", "value": 2.0, "error": None, "mark": None}],
            found.Bar("f", "p", "n", 2.0, math.nan, math.nan),
            found.Bar("f", "p", "n", 2.0, 0.1, math.nan),
        ),
        (
            lost_maps,
            [{"figure": "f", "panel": "p", "x": [1, 2], "y": [1], "values": [[1.0, None]]}],
            found.Map("f", "p", [1, 2], [1], [[1.0, math.nan]]),
            found.Map("f", "p", [1, 2], [1], [[1.0, 0.5]]),
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_comparison_sees_one_value_that_differs(compare: Callable[..., Iterator[str]], kept, same, changed):
    assert list(compare(kept, [same])) == []
    assert len(list(compare(kept, [changed]))) == 1


def test_a_measured_number_is_found_and_a_size_need_not_be():
    kept = [{"text": "t", "numbers": ["1.2", "1.25", "32"]}, {"text": "u", "numbers": ["1.2", "32"]}]
    assert list(lost_numbers(kept, [1.2, 1.25])) == []
    assert len(list(lost_numbers(kept, [1.2]))) == 1
