"""Two variants of the same code as the sides of a comparison: what differs is a field of the case, as a tile is.

The rest of each case stays as it is, so both sides compute the same thing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyperf_suite.errors import UserError
from pyperf_suite.history.pairs.arms import PairedCase
from pyperf_suite.history.pairs.user_arms import parse_requirements
from pyperf_suite.runner.plan import PlannedCase
from pyperf_suite.runner.record import Case, encode_fields


def parse_variant(text: str) -> dict[str, str] | None:
    """`tile=64x64x256,implementation=native` as a mapping; None for a text that is no variant, as numpy==2.1.0 is none.

    Raises UserError for one that names a field twice or leaves a value out.
    """
    if "=" not in text or parse_requirements(text) is not None:
        return None
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value) or name in fields:
            raise UserError(f"{text!r} is not a variant: write FIELD=VALUE[,FIELD=VALUE], as in tile=64x64x256.")
        fields[name] = value
    return fields


def pair_variants(cases: Sequence[PlannedCase], old: Mapping[str, str], new: Mapping[str, str]) -> list[PairedCase]:
    """Each case as both variants have it; cases that lack a field, or cannot be so, are left out.

    Raises UserError where none is left, with the reason of the first.
    """
    if old == new:
        both = ",".join(f"{name}={value}" for name, value in old.items())
        raise UserError(f"--old and --new are both {both}: name two variants that differ.")
    pairs: dict[tuple[str, str, str], PairedCase] = {}
    reasons: list[str] = []
    for planned in cases:
        try:
            pair = PairedCase(planned.probe, _changed(planned.case, old), _changed(planned.case, new))
        except UserError as reason:
            reasons.append(str(reason))
            continue
        if pair.old != pair.new:
            pairs[pair.probe, pair.old.case_id, pair.new.case_id] = pair
    if not pairs:
        why = f" The first reason: {reasons[0]}" if reasons else " Both sides are the same."
        raise UserError(f"No case can be had in both variants.{why}")
    return list(pairs.values())


def _changed(case: Case, fields: Mapping[str, str]) -> Case:
    """The case with these fields; a schedule without workers keeps the case's own. Raises UserError."""
    data = case.to_json()
    parameters = dict(data["parameters"])
    for name, value in fields.items():
        if name == "implementation":
            data["implementation"] = value
        elif not hasattr(case.parameters, name):
            known = ", ".join(["implementation", *vars(case.parameters)])
            raise UserError(f"{case.operator} has no field {name!r}: it has {known}.")
        elif name == "schedule" and "@" not in value:
            parameters[name] = f"{value}@{case.parameters.schedule.workers}"
        else:
            parameters[name] = _typed(value, getattr(case.parameters, name))
    changed = Case.from_json(data | {"parameters": parameters})
    changed.validate()
    # As it would be written: a value spelled in another way, or one that is the default, is the same case.
    return Case.from_json(changed.to_json() | {"parameters": encode_fields(changed.parameters)})


def _typed(value: str, present: object) -> object:
    """The value as the field holds it in JSON: numbers and truth values as such, else the text."""
    if isinstance(present, bool):
        if value.lower() not in ("true", "false"):
            raise UserError(f"{value!r} is neither true nor false.")
        return value.lower() == "true"
    if isinstance(present, int | float):
        try:
            return type(present)(value)
        except ValueError:
            raise UserError(f"{value!r} is not a number.") from None
    return value


def choose(cases: Sequence[PairedCase], expression: str) -> list[PairedCase]:
    """The cases whose probe and label hold every word of the expression; `not WORD` leaves out those that hold it.

    Raises UserError where nothing is left, a `not` has nothing behind it, or an `or` asks for what is not known here:
    as a word it would hold in every "torch".
    """
    wanted, unwanted = [], []
    words = iter(expression.lower().replace(",", " ").split())
    for word in words:
        if word == "and":
            continue
        if word == "or" or word in "()":
            raise UserError(f"-k {expression!r}: {word!r} is not known, for all words must hold; ask twice instead.")
        if word != "not":
            wanted.append(word)
            continue
        refused = next(words, None)
        if refused is None:
            raise UserError(f"-k {expression!r} ends in `not`: say what is not wanted.")
        unwanted.append(refused)
    texts = {case: f"{case.probe} {case.label}".lower() for case in cases}
    chosen = [
        case
        for case, text in texts.items()
        if all(word in text for word in wanted) and not any(word in text for word in unwanted)
    ]
    if not chosen:
        first = cases[0].label if cases else "none"
        raise UserError(f"-k {expression!r} leaves none of the {len(cases)} benchmarks; the first is {first}.")
    return chosen
