"""How often the sequential rule errs, what it finds and what it costs, over simulated pairs of four kinds of noise.

python tools/simulate_decisions.py [TRIALS]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence

import numpy as np
from scipy.signal import lfilter

from pyperf_suite.history.verdict import SequentialRule, critical_sum

SHIFTS = (0.0, 0.01, 0.02, 0.03, 0.05)
TRIALS = 5000
SLICES = 16
LAUNCHES = 5


def drifting_noise(random: np.random.Generator, trials: int, pairs: int) -> np.ndarray:
    """Log-ratios of pairs whose launches drift by 5 %, swing by 1 %, are AR(1), and differ from process to process.

    Two processes a pair take turns, ABBA with a random start; each pair's log-ratio is that of their medians.
    """
    count = pairs * SLICES * LAUNCHES
    turns = np.tile([False, True, True, False], SLICES // 4)
    ratios = np.empty((trials, pairs))
    for trial in range(trials):
        time = np.linspace(0, 1, count)
        swing = 0.01 * np.sin(random.uniform(2, 40) * time + random.uniform(0, 6))
        steps = lfilter([math.sqrt(1 - 0.8**2)], [1, -0.8], random.normal(0, 0.02, count))
        logs = (random.choice([-1, 1]) * 0.05 * time + swing + steps).reshape(pairs, SLICES, LAUNCHES)
        is_new = turns ^ (random.random((pairs, 1)) < 0.5)
        new, old = (np.median(logs[chosen].reshape(pairs, -1), axis=1) for chosen in (is_new, ~is_new))
        ratios[trial] = new - old + np.diff(random.normal(0, 0.004, (2, pairs)), axis=0)
    return ratios


def shared_machine(random: np.random.Generator, trials: int, pairs: int) -> np.ndarray:
    """Log-ratios like those measured on a shared 2-core machine: sd 3.1 %, MAD-sd 2.1 %, every tenth pair far out."""
    spread = np.where(random.random((trials, pairs)) < 0.1, 0.08, 0.019)
    return spread * random.normal(0, 1, (trials, pairs))


def bursts(random: np.random.Generator, trials: int, pairs: int) -> np.ndarray:
    """The same, where disturbances come in bursts of about eight pairs."""
    moods = lfilter([1], [1, -0.88], random.normal(0, 1, (trials, pairs + 50)), axis=1)[:, 50:]
    spread = np.where(moods > 2.7, 0.08, 0.019)
    return spread * random.normal(0, 1, (trials, pairs))


def dependent_pairs(random: np.random.Generator, trials: int, pairs: int) -> np.ndarray:
    """The shared machine's, but each pair resembles the one before: AR(1) of 0.3, which the rule does not assume."""
    drawn = shared_machine(random, trials, pairs + 20)
    return lfilter([math.sqrt(1 - 0.3**2)], [1, -0.3], drawn, axis=1)[:, 20:]


NOISES: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "drift, AR(1), offsets": drifting_noise,
    "shared machine": shared_machine,
    "bursts": bursts,
    "dependent pairs": dependent_pairs,
}


def judged(rule: SequentialRule, log_ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `rule.decide` says of each row, asked look by look: the verdicts, and the pairs that they took.

    The same tests for all rows at once.
    """
    verdicts = np.full(len(log_ratios), "undecided", dtype="<U10")
    taken = np.full(len(log_ratios), rule.max_pairs)
    bound = math.log1p(rule.margin)
    for look in rule.looks:
        seen = log_ratios[:, :look]
        share, share_equivalent = rule.shares(look)
        alarm = critical_sum(look, rule.alpha / 2 * share)
        calm = critical_sum(look, rule.alpha_equivalent * share_equivalent)
        tests = {
            "slower": _rank_sums(seen - bound) >= alarm,
            "faster": _rank_sums(-seen - bound) >= alarm,
            "equivalent": (_rank_sums(bound - seen) >= calm) & (_rank_sums(bound + seen) >= calm),
        }
        for verdict, holds in tests.items():
            now = holds & (verdicts == "undecided")
            verdicts[now] = verdict
            taken[now] = look
    return verdicts, taken


def _rank_sums(values: np.ndarray) -> np.ndarray:
    ranks = np.argsort(np.argsort(np.abs(values), axis=1), axis=1) + 1
    return (ranks * (values > 0)).sum(axis=1)


def rows(rule: SequentialRule, trials: int, seed: int = 0) -> Sequence[tuple[str, float, np.ndarray, np.ndarray]]:
    """For each noise and shift: its name, the shift as a share, the verdicts and the pairs taken."""
    found = []
    for name, noise in NOISES.items():
        # Every launch of the drifting ones is simulated, which takes longer.
        drawn = noise(np.random.default_rng(seed), trials // (5 if noise is drifting_noise else 1), rule.max_pairs)
        for shift in SHIFTS:
            found.append((name, shift, *judged(rule, drawn + math.log1p(shift))))
    return found


def main() -> None:
    """Print the table."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else TRIALS
    rule = SequentialRule()
    print(f"{rule}; {trials} trials, a fifth of it where every launch is simulated")
    print("noise                  shift   slower   faster  equivalent  undecided   pairs: median  90 %")
    for name, shift, verdicts, taken in rows(rule, trials):
        shares = [100 * np.mean(verdicts == verdict) for verdict in ("slower", "faster", "equivalent", "undecided")]
        median, most = np.quantile(taken, (0.5, 0.9))
        print(
            f"{name:22} {shift:5.0%} {shares[0]:7.2f}% {shares[1]:7.2f}% {shares[2]:10.1f}% {shares[3]:9.1f}%"
            f" {median:15.0f} {most:5.0f}"
        )


if __name__ == "__main__":
    main()
