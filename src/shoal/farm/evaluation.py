"""Compare autoscalers on the same streams, with the rows of the farm paper's Table III.

1. Every autoscaler gets the same seeds, none of which training used.
2. A setting is a workload, an order of the queue, and whether autoscalers see the phase clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import sqrt
from statistics import fmean, stdev

from shoal.errors import UsageError
from shoal.farm.autoscalers import Fixed, ReactiveAverage, ReactiveMaximum, SquareRootStaffing
from shoal.farm.episode import Episode, run_episode
from shoal.farm.learned import DoubleDqn, Sarsa, Trained, kind_of_file
from shoal.farm.model import Autoscaler
from shoal.farm.orders import order_named
from shoal.farm.paper_policies import PaperDqn, PaperSarsa
from shoal.farm.predictive import ModelPredictive
from shoal.farm.simulated import PAPER, Overheads, SimulatedFarm
from shoal.farm.workloads import workload_named

EVALUATION_SEEDS = 2_000_000
"""The first seed of an evaluation; training never uses these seeds."""
STREAMS = 200
"""How many streams of each workload an evaluation has by default."""
_FLOORS = {"least-laxity": 12}
_FLOOR_ELSE = 14
"""The fewest workers for autoscalers that can't anticipate the paper's steepest rise."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The circumstances under which autoscalers are compared."""

    workload: str = "paper-measured"
    order: str = "fifo"
    phase_clock: bool = True

    def __str__(self) -> str:
        return f"{self.workload}, {self.order}, {'with' if self.phase_clock else 'no'} phase clock"


AutoscalerMaker = Callable[[Setting], Autoscaler]
"""Makes an autoscaler for a setting."""


def _square_root(setting: Setting) -> SquareRootStaffing:
    """Create one with settings that suit the paper's streams, chosen on training streams."""
    floor = _floor(setting)
    if setting.order == "least-laxity":
        return SquareRootStaffing(0.2, floor=floor, patience=1, hold=4, backlog=1.0, inside=0.4)
    return SquareRootStaffing(1.25, floor=floor, patience=1, hold=5, inside=0.2)


TRAINED: dict[str, type[Trained]] = {
    "predictive": ModelPredictive,
    "sarsa": Sarsa,
    "dqn": DoubleDqn,
}
"""The kinds of trained autoscalers."""


def _shipped(kind: type[Trained], setting: Setting) -> Autoscaler:
    return kind.shipped(setting.order, phase_clock=setting.phase_clock, workload=setting.workload)


def _floor(setting: Setting) -> int:
    return _FLOORS.get(setting.order, _FLOOR_ELSE)


MAKERS: dict[str, AutoscalerMaker] = {
    "reactive-average": lambda setting: ReactiveAverage(),
    "reactive-maximum": lambda setting: ReactiveMaximum(),
    "square-root": _square_root,
    **{kind: partial(_shipped, trained) for kind, trained in TRAINED.items()},
}
"""The named autoscalers of commands, besides `fixed-N` and files of policies."""


def maker_named(name: str) -> AutoscalerMaker:
    """Return the function that creates the autoscaler with this name."""
    if name in MAKERS:
        return MAKERS[name]
    kind, _, number = name.partition("-")
    if kind == "fixed" and number.isdigit() and int(number) > 0:
        return lambda setting: Fixed(int(number))
    if name.endswith(".npz"):
        trained = load_policy(name)
        return lambda setting: trained
    raise UsageError(
        f"There is no autoscaler {name!r}; choose one of {', '.join(MAKERS)}, fixed-N, or the file "
        "of a trained policy, which ends with .npz."
    )


def names_for(setting: Setting) -> list[str]:
    """Return the autoscalers for a setting; trained ones only if Shoal includes one for it."""

    def comes(name: str) -> bool:
        kind = TRAINED.get(name)
        return kind is None or kind.comes(
            setting.order, phase_clock=setting.phase_clock, workload=setting.workload
        )

    return [name for name in MAKERS if comes(name)]


def load_policy(path: str) -> Trained:
    """Load a trained policy of any kind."""
    kinds: dict[str, type[Trained]] = {
        **TRAINED,
        PaperSarsa.kind: PaperSarsa,
        PaperDqn.kind: PaperDqn,
    }
    try:
        return kinds.get(kind_of_file(path), Sarsa).load(path)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{path} can't be read as a trained policy: {error}.") from error


def settings(
    workloads: Sequence[str], orders: Sequence[str], clocks: Sequence[bool]
) -> list[Setting]:
    """Return every combination of workload, order and clock."""
    return [Setting(*each) for each in product(workloads, orders, clocks)]


def evaluate(
    makers: Mapping[str, AutoscalerMaker],
    setting: Setting,
    *,
    seeds: int = STREAMS,
    overheads: Overheads = PAPER,
    report: Callable[[], None] = lambda: None,
) -> dict[str, list[Episode]]:
    """Run an episode for each autoscaler and seed; `report` is called after each."""
    generate, order = workload_named(setting.workload), order_named(setting.order)
    episodes: dict[str, list[Episode]] = {name: [] for name in makers}
    scalers = {name: make(setting) for name, make in makers.items()}
    for seed in range(EVALUATION_SEEDS, EVALUATION_SEEDS + seeds):
        workload = generate(seed)
        for name, scaler in scalers.items():
            farm = SimulatedFarm(workload, order=order, overheads=overheads, seed=seed)
            episodes[name].append(run_episode(farm, scaler, phase_clock=setting.phase_clock))
            report()
    return episodes


def table(episodes: Mapping[str, Sequence[Episode]]) -> str:
    """Return Table III with means and their standard errors, one column per autoscaler."""
    rows: list[tuple[str, Callable[[Episode], float]]] = [
        ("QoS [%]", lambda episode: 100 * episode.qos),
        ("mean workers", lambda episode: episode.mean_workers),
        ("max workers", lambda episode: episode.max_workers),
        ("scaling actions", lambda episode: episode.actions),
        ("no-ops", lambda episode: episode.no_ops),
    ]
    for phase in range(len(next(iter(episodes.values()))[0].phase_qos)):
        rows += _phase_rows(phase)
    cells = [["", *episodes]]
    for title, value in rows:
        cells.append(
            [title, *(_estimate([value(e) for e in column]) for column in episodes.values())]
        )
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    return "\n".join(
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in cells
    )


def _phase_rows(phase: int) -> list[tuple[str, Callable[[Episode], float]]]:
    return [
        (f"phase {phase} QoS [%]", lambda episode: 100 * episode.phase_qos[phase]),
        (f"phase {phase} workers", lambda episode: episode.phase_workers[phase]),
    ]


def _estimate(values: Sequence[float]) -> str:
    """Return a mean and its standard error."""
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{fmean(values):.2f} ± {error:.2f}"
