"""pytest-benchmark's fixture with the measuring taken over: what its users see and set stays theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

from pyperf_suite.pytests.replay import Call, ReplayClock, Source


class MeasuredBenchmark(BenchmarkFixture):
    """A fixture that asks a source for times and replays them through its own public `pedantic`."""

    _source: Source
    _clock: ReplayClock
    _is_used = False
    # Whether the test judges, or may judge, by the times themselves.
    looked_at_stats = False

    @classmethod
    def take_over(cls, fixture: BenchmarkFixture, source: Source, clock: ReplayClock) -> MeasuredBenchmark:
        """The same object, which others hold and look into, as one of this class; `clock` must be its timer."""
        fixture.__class__ = cls
        assert isinstance(fixture, cls)
        fixture._source, fixture._clock = source, clock
        return fixture

    def __call__(self, function_to_benchmark: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """As pytest-benchmark's: measure the call, and return what the function returns."""
        if self.disabled or self._is_used:  # used twice, it says so itself
            return super().__call__(function_to_benchmark, *args, **kwargs)
        return self._replayed(Call(function_to_benchmark, args, kwargs))

    def pedantic(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[..., Any] | None = None,
        rounds: int = 1,
        warmup_rounds: int = 0,
        iterations: int = 1,
    ) -> Any:
        """As pytest-benchmark's: in each process so many rounds of so many iterations, and no others."""
        asked = {"rounds": rounds, "warmup_rounds": warmup_rounds, "iterations": iterations}
        whole = all(isinstance(each, int) for each in asked.values())
        can_be = whole and rounds >= 1 and warmup_rounds >= 0 and iterations >= 1 and not (iterations > 1 and setup)
        if self.disabled or self._is_used or not can_be:  # what cannot be, pytest-benchmark says itself
            return super().pedantic(target, args, kwargs, setup, teardown, **asked)
        return self._replayed(Call(target, args, kwargs or {}, setup, teardown, **asked))

    def _replayed(self, call: Call) -> Any:
        self._is_used = True
        try:
            timing = self._source.time(self.fullname, call)
        except BaseException as error:
            raised, self.has_error = error, True

            def fail() -> None:
                raise raised

            # By its own way, so that it knows that it was used.
            return super().pedantic(fail)
        self.extra_info.update(timing.extra_info)
        self._clock.load(timing.seconds)
        left = len(timing.seconds)

        def told() -> Any:
            nonlocal left
            left -= 1
            return timing.result if left >= 0 else call.once()  # which only a profiler asks for

        return super().pedantic(told, rounds=len(timing.seconds), iterations=1)

    @property
    def stats(self) -> Any:
        """pytest-benchmark's statistics; None before something was measured."""
        self.looked_at_stats = True
        return self.__dict__["stats"]

    @stats.setter
    def stats(self, value: Any) -> None:
        self.__dict__["stats"] = value
