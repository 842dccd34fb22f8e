"""Define the grids of experiments: which workflows run with which planners and service levels.

A configuration is a workflow, a planner and a service level. It runs repeatedly, after warm-up runs
that fill its history and don't count. Grids can also be read from JSON files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal.errors import UsageError, suggestion
from shoal.experiments.instances import instance_shape
from shoal.experiments.platforms import platform_named
from shoal.experiments.published import PREFIX, published_shape
from shoal.experiments.shapes import Shape, shape_named
from shoal.experiments.sweeps import DELAYS, SIGN, SIZED, version_shape
from shoal.experiments.virtual_costs import WorkModel
from shoal.planning.auto import AutoPlanner
from shoal.planning.base import Conditions, Planner
from shoal.planning.choice import planned
from shoal.planning.nonuniform import NonUniformPlanner
from shoal.planning.optimizations import PreLoadOptimization, PreWarmOptimization
from shoal.planning.uniform import UniformPlanner
from shoal.planning.wukong import WukongPlanner
from shoal.types import SLA, Percentile, Resources
from shoal.workflow import Workflow

SMALL = Resources(2048)
SIZES = (Resources(8192), Resources(4096), SMALL)
BIG = 5 * 1024 * 1024
"""The size from which an output is big for WUKONG, as in the published comparison."""
SCALED_BIG = 1024 * 1024
"""The same for the WUKONG paper's workloads, whose chunks are smaller here."""
_OPTIMIZATIONS = (PreLoadOptimization, PreWarmOptimization)
_UNCLUSTERED: dict[str, Any] = {"fan_out_clustering": False, "fan_in_clustering": False}
_PLAIN: dict[str, Any] = {**_UNCLUSTERED, "delayed_io": False, "big_output_nbytes": BIG}
_STEPS: Sequence[dict[str, Any]] = (
    _PLAIN | {"large_fan_out": None, "big_output_nbytes": SCALED_BIG},
    _PLAIN | {"big_output_nbytes": SCALED_BIG},
    {"delayed_io": False, "big_output_nbytes": SCALED_BIG},
    {"big_output_nbytes": SCALED_BIG},
)
"""WUKONG's techniques, added one at a time: none, the fan-out invoker, clustering, delayed I/O."""

PlannerMaker = Callable[[SLA, Workflow, Conditions], Planner]
"""Creates a planner for a service level; one with a goal also uses workflow and conditions."""


def _wukong(**policies: Any) -> PlannerMaker:
    return lambda sla, workflow, conditions: WukongPlanner(SMALL, sla=sla, **policies)


def _cheapest(sla: SLA, workflow: Workflow, conditions: Conditions) -> Planner:
    """Create a planner of the cheapest plan that is as fast as Uniform's."""
    uniform = planned(workflow, conditions, UniformPlanner(SMALL, sla=sla))
    return AutoPlanner(SIZES, deadline=uniform.makespan, sla=sla, seconds=AUTO_SECONDS)


def _published(name: str) -> PlannerMaker:
    """Return a maker of a planner that uses a published scheduler."""

    def make(sla: SLA, workflow: Workflow, conditions: Conditions) -> Planner:
        try:
            from shoal.experiments import schedulers
        except ModuleNotFoundError as error:
            raise UsageError(
                f"The planner {name!r} needs {error.name}, which isn't installed: "
                "pip install 'shoal[quality]'."
            ) from error
        return schedulers.SagaPlanner(schedulers.SCHEDULERS[name])

    return make


SCHEDULERS = (
    "HEFT", "CPOP", "ETF", "BIL", "DPS", "Duplex", "FCP", "FLB", "GDL", "HBMCT", "MaxMin", "MCT",
    "MET", "MinMin", "MSBC", "MST", "OLB", "Suffer", "WBA", "Fastest",
)  # fmt: skip
"""The published schedulers (extra `quality`)."""
AUTO_SECONDS = 0.4
"""How many seconds Auto may plan."""
PLANNERS: Mapping[str, PlannerMaker] = {
    "wukong": _wukong(**_PLAIN),
    "wukong-optimised": _wukong(big_output_nbytes=BIG),
    "uniform": lambda sla, *_: UniformPlanner(SMALL, sla=sla),
    "uniform-optimised": lambda sla, *_: UniformPlanner(
        SMALL, sla=sla, optimizations=_OPTIMIZATIONS
    ),
    "non-uniform": lambda sla, *_: NonUniformPlanner(SIZES, sla=sla),
    "non-uniform-optimised": lambda sla, *_: NonUniformPlanner(
        SIZES, sla=sla, optimizations=_OPTIMIZATIONS
    ),
    "auto-fastest": lambda sla, *_: AutoPlanner(SIZES, sla=sla, seconds=AUTO_SECONDS),
    "auto-cheapest": _cheapest,
    "decentralised": _wukong(**_STEPS[0]),
    "fan-out-invoker": _wukong(**_STEPS[1]),
    "clustering": _wukong(**_STEPS[2]),
    "delayed-io": _wukong(**_STEPS[3]),
    "without-fan-out-invoker": _wukong(**(_STEPS[3] | {"large_fan_out": None})),
    "without-clustering": _wukong(**(_STEPS[3] | _UNCLUSTERED)),
    "predicted": _wukong(**(_STEPS[3] | {"decide": "predicted"})),
    "ideal-storage": _wukong(**_STEPS[3]),
    **{name: _published(name) for name in SCHEDULERS},
}
"""The planners of grids, by name."""

CENTRALISED = ("strawman", "pubsub", "parallel-invokers")
"""Designs with a central scheduler."""
PEERS = ("dask", "laptop")
"""Dask on a cluster of processes, and as on a laptop."""
REAL_ONLY = (*CENTRALISED, *PEERS)
"""What runs only in the mode `real`, without a plan."""
IDEAL_STORAGE = "ideal-storage"
"""WUKONG with all its techniques, on the same workflow without data."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration."""

    workflow: str
    planner: str
    sla: int

    def __str__(self) -> str:
        return f"{self.workflow}/{self.planner}/{self.sla}"

    @property
    def level(self) -> SLA:
        """The service level."""
        return "median" if self.sla == 50 else Percentile(self.sla)


@dataclass(frozen=True)
class Grid:
    """The workflows, planners and conditions of an experiment."""

    name: str
    workflows: Sequence[str]
    planners: Sequence[str]
    slas: Sequence[int] = (50, 75, 90)
    warm_up: int = 5
    """How many runs of each configuration fill its history and don't count."""
    workers: int = 32
    """How many workers a plan may use concurrently."""
    sandboxes: int = 32
    idle_seconds: float = 7.0
    latency: float = 0.03
    """The latency of a round trip to store and gateway, in seconds."""
    work: WorkModel = field(default_factory=WorkModel)
    platform: str = "measured"
    """The simulated platform: a name, or a file that `calibrate` wrote."""
    instances: Mapping[str, str] = field(default_factory=dict)
    """The files of workflows that are WfCommons instances, by name."""
    nbytes: float = 1.0
    """The factor for the sizes of files in instances."""

    def shape(self, workflow: str) -> Shape:
        """Return one of the grid's workflows by its name."""
        if workflow in self.instances:
            return instance_shape(self.instances[workflow], self.nbytes)
        if SIGN in workflow:
            return version_shape(workflow)
        name = workflow.removeprefix(PREFIX)
        measured = shape_named(name)
        return measured if name == workflow else published_shape(name, measured)

    def cells(self) -> Iterator[Cell]:
        """Yield every configuration."""
        for workflow in self.workflows:
            for sla in self.slas:
                for planner in self.planners:
                    yield Cell(workflow, planner, sla)

    def settings(self) -> dict[str, Any]:
        """Return the grid's settings for the experiment's record."""
        return {
            "memory_mb": [SMALL.memory_mb, *sorted(r.memory_mb for r in SIZES[:2])],
            "latency": self.latency,
            "sandboxes": self.sandboxes,
            "workers": self.workers,
            "idle_seconds": self.idle_seconds,
            "warm_up": self.warm_up,
            "slas": list(self.slas),
            "instances": dict(self.instances),
            "nbytes": self.nbytes,
            "platform": f"{self.platform}: {platform_named(self.platform).about}",
            "work": {item.name: getattr(self.work, item.name) for item in fields(WorkModel)},
        }


_WORKFLOWS = ("matrix", "tree", "text", "image")
_PAPER = ("wukong", "wukong-optimised", "uniform", "uniform-optimised", "non-uniform",
          "non-uniform-optimised", "auto-fastest", "auto-cheapest")  # fmt: skip
_DESIGNS = ("decentralised", "fan-out-invoker", "clustering", "delayed-io", "predicted",
            "without-fan-out-invoker", "without-clustering", "auto-fastest")  # fmt: skip
_BESIDE = ("HEFT", "CPOP", "ETF", "MaxMin", "MinMin", "Suffer")
"""The published schedulers that instances run with, if they are installed."""
GRIDS: Mapping[str, Grid] = {
    "paper-000": Grid("paper-000", _WORKFLOWS, _PAPER),
    "paper-000-as-published": Grid(
        "paper-000-as-published",
        tuple(PREFIX + name for name in _WORKFLOWS),
        _PAPER,
        platform="published",
    ),
    "agreement": Grid(
        "agreement",
        ("matrix", "tree", "image"),
        _PAPER,
        slas=(50,),
        warm_up=2,
        work=WorkModel(scale=10.0, least=0.1),
    ),
    "paper-003": Grid(
        "paper-003",
        ("tr", "gemm", "svd1", "svd2", "svc"),
        (*CENTRALISED, *_DESIGNS),
        slas=(50,),
        warm_up=3,
        sandboxes=128,
        workers=128,
        idle_seconds=60.0,
    ),
    "paper-003-sizes": Grid(
        "paper-003-sizes",
        (*DELAYS, *SIZED),
        (*PEERS, "decentralised", "delayed-io", IDEAL_STORAGE, "auto-fastest"),
        slas=(50,),
        warm_up=3,
        sandboxes=128,
        workers=128,
        idle_seconds=60.0,
    ),
}
"""The grids by name. `paper-000-as-published` has the paper's own platform and workflows
(`published.py`). `paper-003-sizes` has the workloads of `paper-003` at several sizes, beside Dask.
`agreement` is a quarter of `paper-000` that runs in both modes. Its tasks take a
second or more, so that starting dozens of sandboxes on two cores doesn't dominate."""


def instance_grid(files: Sequence[str]) -> Grid:
    """Return the grid of WfCommons instances: every planner, beside published schedulers."""
    instances: dict[str, str] = {}
    for file in files:
        name = Path(file).stem
        if name in instances:
            raise UsageError(f"Two instances are named {name!r}: {instances[name]} and {file}.")
        instances[name] = str(Path(file).resolve())
    beside = _BESIDE if find_spec("saga") else ()
    planners = (*_PAPER, *beside)
    return Grid("instances", tuple(instances), planners, (50,), 3, instances=instances)


def grid_named(name: str) -> Grid:
    """Return a grid by its name, or read it from a file."""
    if name in GRIDS:
        return GRIDS[name]
    path = Path(name)
    if path.suffix != ".json" and not path.exists():
        raise UsageError(
            f"There is no grid {name!r}; choose one of {', '.join(GRIDS)} and scale, or give a "
            ".json file."
        )
    return checked(_read(path))


def _read(path: Path) -> Grid:
    known = {item.name for item in fields(Grid)} - {"name"}
    try:
        given = json.loads(path.read_text())
        unknown = sorted(set(given) - known)
        if unknown:
            raise UsageError(f"{path}: unknown key {unknown[0]!r}; a grid has {sorted(known)}.")
        work = WorkModel(**given.pop("work", {}))
        return Grid(path.stem, work=work, **given)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a grid: {error}.") from error


def checked(grid: Grid) -> Grid:
    """Return the grid if all its workflows, planners and levels exist, else raise an error."""
    for workflow in grid.workflows:
        grid.shape(workflow)
    for planner in grid.planners:
        if planner not in PLANNERS and planner not in REAL_ONLY:
            hint = suggestion(planner, (*PLANNERS, *REAL_ONLY))
            raise UsageError(f"There is no planner {planner!r} for a grid; {hint}")
    platform_named(grid.platform)
    for sla in grid.slas:
        if not isinstance(sla, int) or not 0 < sla < 100:
            raise UsageError(f"slas: {sla!r} must be a percentile between 0 and 100.")
    return grid


def restricted(
    grid: Grid, workflows: Sequence[str] = (), planners: Sequence[str] = (),
    slas: Sequence[int] = (),
) -> Grid:  # fmt: skip
    """Restrict a grid to these workflows, planners and levels, where given."""
    return checked(
        replace(
            grid,
            workflows=workflows or grid.workflows,
            planners=planners or grid.planners,
            slas=slas or grid.slas,
        )
    )
