"""How far rounding can move each element of a reference's result: which inputs it depends on, and how strongly.

All inputs are moved at once by random shares of either sign. By their root mean square, an element then moves by
S = √Σ(∂f/∂xᵢ·xᵢ)²: the root of the sum of squares of its terms, for a dot product √Σ(aᵢbᵢ)², however much of them
cancels. Then some inputs are changed, each with chance p: an element that depends on K of them changes with chance
1 − (1 − p)^K. Zeros do not move and are no terms. No derivative and no knowledge of the function is needed.

Nothing but the standard library is imported, and nothing newer than Python 3.9 is used (audit/kernel_process.py).
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from pyperf_suite.user_kernels.arrays import distinct, is_array, is_torch, plain_values

# Moves of all inputs: ENOUGH_MOVES are enough for each element by itself. Of fewer, an element's own count with two
# moves of all elements together: no S is taken for near zero by an unlucky sign.
ENOUGH_MOVES, POOLED_MOVES = 8, 2
# Looks for the number of terms: two, and more while there is time. The first changes half a value along the longest
# dimension, but enough values to move some elements of many; the next LOOK_FACTOR times as many, or as few. A look
# decides if ENOUGH_MOVED elements moved, and no larger share than MOST_MOVED.
FEWEST_LOOKS, MOST_LOOKS, FIRST_LOOK, LOOK_FACTOR = 2, 6, 0.5, 16.0
ENOUGH_MOVED, MOST_MOVED = 10, 0.8
CHANGE = 1.5
# Errors by which a reference refuses other inputs. A look then changes them by as little as a move does.
REFUSALS = (ValueError, ArithmeticError, AssertionError, LookupError, RuntimeError)
# Inputs move by no larger share, however coarse the result's type is.
LARGEST_SHARE = 0.36
# Looks are repeated until this many inputs were changed: each moves all later elements of a running sum at once.
ENOUGH_CHANGED = 30


def measure(
    evaluate: Callable[[Callable[[Any], Any]], Any],
    result: Any,
    inputs: Sequence[Any],
    budget_s: float = 0.2,
    terms: float | None = None,
    seed: int | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """S of each float array of a result by its name, as float32; and what of it goes into a line of JSON.

    That is K, pools of S, and of each array of whole numbers how often a move of all inputs changes one by one. Of a
    reference that refuses moved inputs, as weights that add up to one, nothing; that refuses every look, the most K.

    `evaluate(change)` is what the reference makes of inputs of which `change` made other ones. The number of `terms` is
    that of other inputs of the same shapes, where it is known. All evaluations may take `budget_s`; one move and one
    look are always made. Empty where numpy is not there, or nothing can be moved.
    """
    numpy = sys.modules.get("numpy")
    right = dict(parts(result)) if numpy is not None else {}
    integers = dict(parts(result, integers=True)) if numpy is not None else {}
    share = max((_share(each) for each in inputs), default=0.0)
    if numpy is None or not share or not sum(each.size for each in (*right.values(), *integers.values())):
        return {}, {}
    # A reference that rounds to a coarse type stands still or jumps: where moves are small against that, it seems to
    # amplify them.
    share = max(share, min(_share(result), LARGEST_SHARE))
    begin_s = time.perf_counter()
    draw = numpy.random.default_rng(seed)
    with numpy.errstate(all="ignore"):
        try:
            sizes, edges = _sizes(evaluate, right, integers, share, draw, begin_s + budget_s / 2)
        except REFUSALS:
            return {}, {}
        if not right and not edges:
            return {}, {}
        values = sum(map(_nonzeros, inputs))
        if terms is None:
            terms = math.inf if right else 1.0
            for growth in (CHANGE - 1, share) if right else ():
                with contextlib.suppress(*REFUSALS):
                    terms = _terms(evaluate, right, inputs, values, growth, draw, begin_s + budget_s)
                    break
        terms = min(terms, max(1.0, float(values)))
        pools = {name: _pool(numpy, each, right[name]) for name, each in sizes.items()}
    return sizes, {"terms": terms, "pools": pools, "edges": edges}


def _sizes(
    evaluate: Callable[[Callable[[Any], Any]], Any],
    right: dict[str, Any],
    integers: dict[str, Any],
    share: float,
    draw: Any,
    end_s: float,
) -> tuple[dict[str, Any], dict[str, float]]:
    numpy = sys.modules["numpy"]
    # In float64: squares of what float32 holds overflow it, and an infinite S would allow anything.
    squares = {name: numpy.zeros(each.shape, numpy.float64) for name, each in right.items()}
    overflowed = {name: numpy.zeros(each.shape, bool) for name, each in right.items()}
    moves, crossed, reach = 0, dict.fromkeys(integers, 0.0), share * 3**0.5
    while not moves or (moves < ENOUGH_MOVES and time.perf_counter() < end_s):
        # Terms of one size that cancel would stand still where their signs agree: one in 256 in all of 8 moves.
        made = evaluate(partial(_changed, lambda count: draw.uniform(-reach, reach, count).astype("f4")))
        moved = dict(parts(made))
        moves += 1
        for name, changed in parts(made, integers=True):
            if name in integers and integers[name].shape == changed.shape and changed.size:
                ours = integers[name]  # the larger less the smaller: what wraps around is not off by one
                crossed[name] += float((numpy.where(ours > changed, ours - changed, changed - ours) == 1).mean())
        for name, values in right.items():
            changed = moved.get(name)
            if changed is not None and changed.shape == values.shape:
                move = numpy.abs(changed - values) / share
                overflowed[name] |= ~numpy.isfinite(move) & numpy.isfinite(values)
                squares[name] += numpy.where(numpy.isfinite(move), move, 0.0) ** 2
    pooled_moves = POOLED_MOVES if moves < ENOUGH_MOVES else 0
    largest = numpy.finfo("f4").max
    for name, values in squares.items():
        pooled = float(values.mean()) / moves if values.size else 0.0
        values += min(pooled_moves * pooled, 1e300)
        values /= moves + pooled_moves
        numpy.minimum(numpy.sqrt(values, out=values), largest, out=values)
        # An element that a move takes out of range says nothing of itself, and nothing of the others.
        values[overflowed[name]] = largest
    sizes = {name: each.astype("f4") for name, each in squares.items()}
    return sizes, {name: times / moves / share for name, times in crossed.items() if times}


def _terms(
    evaluate: Callable[[Callable[[Any], Any]], Any],
    right: dict[str, Any],
    inputs: Sequence[Any],
    values: int,
    growth: float,
    draw: Any,
    end_s: float,
) -> float:
    """How many inputs an element depends on, of the array whose elements depend on the most."""
    longest = max([2, *(size for each in inputs for size in _shape(each))])
    elements = max(each.size for each in right.values())
    chance, none, every = FIRST_LOOK / longest, 0.0, 1.0
    if elements >= longest / 2:
        chance = min(0.5, max(chance, 3 * ENOUGH_MOVED / elements))

    def look() -> tuple[float, int]:
        changed = dict(parts(evaluate(partial(_changed, partial(_some, draw, chance, growth)))))
        return max(_moved(each, changed.get(name)) for name, each in right.items())

    terms = 0.0
    for looks in range(MOST_LOOKS):
        if looks >= FEWEST_LOOKS and time.perf_counter() > end_s:
            break
        moved, count = look()
        if 0 < moved <= MOST_MOVED:
            shares = [moved]
            while len(shares) * chance * values < ENOUGH_CHANGED and time.perf_counter() < end_s:
                again, more = look()
                shares.append(min(again, 1 - 1e-9))
                count += more
            terms = math.log1p(-sum(shares) / len(shares)) / math.log1p(-chance)
            if count >= ENOUGH_MOVED:
                break
        if moved <= MOST_MOVED:
            none, chance = max(none, chance), chance * LOOK_FACTOR
        else:
            every, chance = min(every, chance), chance / LOOK_FACTOR
        if not none < chance < every or chance > 0.5:
            break
    # Else between a chance at which none moved and one at which all did: the more terms that may be.
    return terms or (1.0 / none if none else math.inf)


def _moved(right: Any, changed: Any) -> tuple[float, int]:
    """The share of elements that are other ones, and their number."""
    if changed is None or changed.shape != right.shape or not right.size:
        return 0.0, 0
    count = int(((changed != right) & sys.modules["numpy"].isfinite(right)).sum())
    return count / right.size, count


def _pool(numpy: Any, size: Any, right: Any) -> list[float]:
    """[size, rms, spread]: √mean S², √mean r², and the largest S/(size·(1 + |r|/rms)), where both are known."""
    known = numpy.isfinite(right) & (size < numpy.finfo("f4").max)
    size, right = size[known], right[known]
    rms = float(numpy.sqrt((numpy.abs(right) ** 2).mean())) if size.size else 0.0
    mean = float(numpy.sqrt((size.astype(numpy.float64) ** 2).mean())) if size.size else 0.0
    if not mean or not math.isfinite(rms):
        return [mean, 1.0, 1.0]
    rms = rms or 1.0
    with numpy.errstate(all="ignore"):
        spread = float(numpy.nanmax(size / (mean * (1 + numpy.abs(right) / rms))))
    return [mean, rms, max(1.0, spread) if math.isfinite(spread) else 1.0]


def parts(result: Any, name: str = "out", integers: bool = False) -> Iterator[tuple[str, Any]]:
    """Each array of floats in a result, widened, and each number or list of them; with `integers` of whole numbers."""
    numpy = sys.modules["numpy"]
    if type(result) is complex and not integers:
        yield name, numpy.asarray(result)
    elif is_torch(result):
        if integers != (result.is_floating_point() or result.is_complex()) and str(result.dtype) != "torch.bool":
            host = plain_values(result.detach().resolve_conj().resolve_neg().cpu())[0]
            yield name, (host if host.is_complex() or integers else host.double()).numpy()
    elif is_array(result) or isinstance(result, numpy.generic):
        result = plain_values(result)[0]
        if integers and result.dtype.kind in "iu":
            yield name, numpy.asarray(result)
        elif not integers and result.dtype.kind in "fc":
            yield name, numpy.asarray(result, dtype="c16" if result.dtype.kind == "c" else "f8")
    elif isinstance(result, float) and not integers:
        yield name, numpy.asarray(result)
    elif isinstance(result, (list, tuple)):
        if result and all(type(each) in (int, float, str, bool) for each in result):
            if not integers and {type(each) for each in result} in ({float}, {int, float}):
                yield name, numpy.asarray(result, dtype="f8")
            return
        for at, each in enumerate(result):
            yield from parts(each, f"{name}[{at!r}]", integers)
    elif isinstance(result, dict):
        for key, each in result.items():
            yield from parts(each, f"{name}[{str(key)!r}]", integers)


def _share(value: Any) -> float:
    """The root of the spacing of its values near one: far above rounding, and small; zero where nothing can move."""
    if is_torch(value):
        torch = sys.modules["torch"]
        return math.sqrt(torch.finfo(value.dtype).eps) if value.is_floating_point() or value.is_complex() else 0.0
    if is_array(value):
        return math.sqrt(sys.modules["numpy"].finfo(value.dtype).eps) if value.dtype.kind in "fc" else 0.0
    if isinstance(value, (list, tuple, dict)):
        return max(map(_share, value.values() if isinstance(value, dict) else value), default=0.0)
    return math.sqrt(sys.float_info.epsilon) if type(value) is float else 0.0


def _shape(value: Any) -> Sequence[int]:
    return tuple(value.shape) if is_array(value) else (len(value),) if isinstance(value, (list, tuple, dict)) else ()


def _nonzeros(value: Any) -> int:
    if is_array(value):
        return int((value != 0).sum())
    if isinstance(value, (list, tuple, dict)):
        return sum(map(_nonzeros, value.values() if isinstance(value, dict) else value))
    return 1


def _changed(shares: Callable[[int], Any], value: Any) -> Any:
    """A copy whose floating-point values each have grown by a share; `shares(n)` draws n of them."""
    if is_torch(value):
        if not _share(value):
            return value.clone()
        torch = sys.modules["torch"]
        made = value.detach().clone()
        plain = distinct(made)
        drawn = torch.from_numpy(shares(plain.numel())).to(plain.device).reshape(plain.shape)
        wide = plain if plain.is_complex() or plain.element_size() >= 4 else plain.float()
        plain.copy_(wide + wide * drawn)
        return made.requires_grad_(value.requires_grad)
    if is_array(value):
        if not _share(value):
            return value.copy()
        return value + value * shares(value.size).reshape(value.shape).astype(value.real.dtype)
    if type(value) in (list, tuple):
        if value and all(type(each) is float for each in value):
            numbers = sys.modules["numpy"].asarray(value)
            return type(value)((numbers + numbers * shares(len(value))).tolist())
        return type(value)([_changed(shares, each) for each in value])
    if type(value) is dict:
        return {key: _changed(shares, each) for key, each in value.items()}
    return value + value * float(shares(1)[0]) if type(value) is float else value


def _some(draw: Any, chance: float, growth: float, count: int) -> Any:
    return (draw.random(count, dtype="f4") < chance).astype("f4") * growth
