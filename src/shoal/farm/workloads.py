"""Generate streams of tasks from a seed: arrays of arrivals, processing times and deadlines.

`paper-described` is the stream as the farm paper's text describes it: four phases of 60 s, the last
two sinusoidal. `paper-measured` is the stream that its runs actually had: windows of about a second
with a Poisson number of tasks, empty windows skipped, and no oscillation. The `-shuffled` variants
have the same phases in an order drawn from the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import tau

from shoal.errors import UsageError, suggestion
from shoal.farm.arrays import NDArray, np
from shoal.farm.model import Deadline

PHASE = 60.0
"""The nominal length of a phase of the paper's streams, in seconds."""
COUNTS = (90, 450, 300, 300)
"""Tasks in each phase of the paper's streams."""
_SWINGS = ((0.0, 1), (0.0, 1), (0.5, 1), (0.7, 4))
"""The relative amplitude of each phase's rate, and its number of cycles."""
_IN_ORDER = tuple(range(len(COUNTS)))
_ORDERS = 7
"""Distinguishes the seed of the order of phases from the seed of the stream."""
_SHAPE, _MEAN = 4.0, 1.5
_SHORTEST, _LONGEST = 0.0465, 2.870
"""Processing times: a Gamma distribution, clipped to those of the smallest and largest image."""


@dataclass(frozen=True)
class Workload:
    """A stream of tasks, in the order of their arrivals."""

    arrivals: NDArray[np.float64]
    processing: NDArray[np.float64]
    deadlines: NDArray[np.float64]
    """When each task is due, in seconds after its arrival."""
    phase_starts: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        if not len(self.arrivals) == len(self.processing) == len(self.deadlines):
            raise UsageError(
                "A workload's arrivals, processing and deadlines must have the same length."
            )
        if len(self.arrivals) and (self.arrivals[0] < 0 or np.any(np.diff(self.arrivals) < 0)):
            raise UsageError("A workload's arrivals must be sorted, and start at 0 or later.")

    @property
    def phases(self) -> NDArray[np.int64]:
        """The phase in which each task arrives; a boundary belongs to the earlier phase."""
        starts = np.asarray(self.phase_starts)
        return np.maximum(np.searchsorted(starts, self.arrivals, side="left") - 1, 0)


Generator = Callable[[int], Workload]
"""Makes a workload from a seed."""
Rate = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Returns the tasks per second at each of the given times."""


def processing_times(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Draw processing times from the distribution of the paper's images."""
    return np.clip(rng.gamma(_SHAPE, _MEAN / _SHAPE, count), _SHORTEST, _LONGEST)


def workload_of(
    arrivals: NDArray[np.float64],
    processing: NDArray[np.float64],
    deadline: Deadline | None = None,
    phase_starts: Sequence[float] = (0.0,),
) -> Workload:
    """Create a workload whose deadlines follow from the processing times."""
    rule = deadline or Deadline()
    deadlines = np.clip(rule.factor * processing, rule.least, rule.most)
    return Workload(arrivals, processing, deadlines, tuple(phase_starts))


def paper_described(seed: int, order: Sequence[int] = _IN_ORDER) -> Workload:
    """Generate four phases of 60 s with exact counts; the last two have sinusoidal rates."""
    rng = np.random.default_rng(seed)
    starts = [PHASE * place for place in range(len(order))]
    parts = [
        start + _spread(rng, COUNTS[phase], _configured(phase))
        for start, phase in zip(starts, order, strict=True)
    ]
    arrivals = np.concatenate(parts)
    return workload_of(arrivals, processing_times(rng, len(arrivals)), phase_starts=starts)


def _configured(phase: int) -> Rate:
    """Return the rate of a phase of `paper-described`, relative to its mean."""
    swing, cycles = _SWINGS[phase]
    return _sinusoid(1.0, swing, PHASE / cycles)


def configured_rate(phase: int, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the tasks per second that the paper configured, at these seconds of a phase."""
    return COUNTS[phase] / PHASE * _configured(phase)(seconds)


def _shuffled(generate: Callable[[int, Sequence[int]], Workload]) -> Generator:
    """Return a generator of the same phases in an order drawn from the seed."""

    def generated(seed: int) -> Workload:
        order = np.random.default_rng([seed, _ORDERS]).permutation(len(COUNTS))
        return generate(seed, order.tolist())

    return generated


def _sinusoid(mean: float, swing: float, period: float) -> Rate:
    return lambda x: mean * (1 + swing * np.sin(tau * x / period))


def _spread(
    rng: np.random.Generator, count: int, rate: Rate, seconds: float = PHASE
) -> NDArray[np.float64]:
    """Draw a given number of arrivals of an inhomogeneous Poisson process."""
    grid = np.linspace(0, seconds, 2001)
    cumulated = np.concatenate([[0.0], np.cumsum(rate((grid[1:] + grid[:-1]) / 2))])
    return np.sort(np.interp(rng.random(count) * cumulated[-1], cumulated, grid))


def paper_measured(seed: int, order: Sequence[int] = _IN_ORDER) -> Workload:
    """Generate the same counts in windows of about a second; a window without tasks is skipped."""
    rng = np.random.default_rng(seed)
    gaps: list[NDArray[np.float64]] = []
    counts = [COUNTS[phase] for phase in order]
    for left in counts:
        for window in range(int(PHASE), 0, -1):
            number = left if window == 1 else min(left, int(rng.poisson(left / window)))
            if number:
                gaps.append(rng.exponential(1 / number, number))
                left -= number
    arrivals = np.cumsum(np.concatenate(gaps))
    starts = [0.0, *arrivals[np.cumsum(counts)[:-1] - 1].tolist()]
    return workload_of(arrivals, processing_times(rng, len(arrivals)), phase_starts=starts)


def poisson(rate: float, seconds: float = 240.0) -> Generator:
    """Return a generator of arrivals at a constant rate."""
    return _varying(lambda x: np.full_like(x, rate), seconds)


def step(before: float, after: float, at: float = 120.0, seconds: float = 240.0) -> Generator:
    """Return a generator whose rate changes once."""
    return _varying(lambda x: np.where(x < at, before, after), seconds, (0.0, at))


def sine(mean: float, swing: float, period: float = 60.0, seconds: float = 240.0) -> Generator:
    """Return a generator with a sinusoidal rate; `swing` is its relative amplitude."""
    return _varying(_sinusoid(mean, swing, period), seconds)


def impulse(
    rate: float, burst: int, at: float = 120.0, width: float = 1.0, seconds: float = 240.0
) -> Generator:
    """Return a generator with a constant rate, plus a burst of tasks within `width` seconds."""

    def rates(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where((x >= at) & (x < at + width), rate + burst / width, rate)

    return _varying(rates, seconds)


def replay(
    arrivals: Iterable[float], processing: Iterable[float], deadline: Deadline | None = None
) -> Generator:
    """Return a generator of a recorded stream, the same for every seed."""
    recorded = workload_of(
        np.asarray(list(arrivals), float), np.asarray(list(processing), float), deadline
    )
    return lambda seed: recorded


def _varying(rate: Rate, seconds: float, phase_starts: Sequence[float] = (0.0,)) -> Generator:
    def generate(seed: int) -> Workload:
        rng = np.random.default_rng(seed)
        grid = np.linspace(0, seconds, 2001)
        count = int(rng.poisson(float(rate((grid[1:] + grid[:-1]) / 2).mean()) * seconds))
        arrivals = _spread(rng, count, rate, seconds)
        return workload_of(arrivals, processing_times(rng, count), phase_starts=phase_starts)

    return generate


WORKLOADS: dict[str, Generator] = {
    "paper-described": paper_described,
    "paper-measured": paper_measured,
    "paper-described-shuffled": _shuffled(paper_described),
    "paper-measured-shuffled": _shuffled(paper_measured),
    "poisson": poisson(5.0),
    "step": step(1.5, 7.5),
    "sine": sine(5.0, 0.5),
    "impulse": impulse(3.0, 100),
}
"""The workloads by name."""


def workload_named(workload: str | Generator) -> Generator:
    """Return the generator with this name; a generator is returned as it is."""
    if not isinstance(workload, str):
        return workload
    if workload not in WORKLOADS:
        raise UsageError(
            f"There is no workload {workload!r}; {suggestion(workload, list(WORKLOADS))}"
        )
    return WORKLOADS[workload]
