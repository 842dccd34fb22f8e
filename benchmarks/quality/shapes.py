"""Define `Shape`, a workflow whose task times and output sizes are known in advance.

1. Most come from the recipes of wfcommons, which were learnt from runs of scientific workflows; an
   edge is a file that a task reads and another wrote, and a task's output is all files it wrote.
2. A recipe can't always give the number of tasks asked for: it gives the nearest it can, and never
   fewer than those of the smallest run it was learnt from.
3. The same arguments give the same shape, as long as PYTHONHASHSEED is fixed: recipes iterate over
   sets of names.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from wfcommons.wfchef import recipes

from shoal.types import TaskId
from shoal.workflow import Output, Task, Workflow

RECIPES = {
    "blast": recipes.BlastRecipe,
    "bwa": recipes.BwaRecipe,
    "cycles": recipes.CyclesRecipe,
    "epigenomics": recipes.EpigenomicsRecipe,
    "genome": recipes.GenomeRecipe,
    "montage": recipes.MontageRecipe,
    "rnaseq": recipes.RnaseqRecipe,
    "seismology": recipes.SeismologyRecipe,
    "soykb": recipes.SoykbRecipe,
    "srasearch": recipes.SrasearchRecipe,
}

SHORTEST = 0.001
"""The seconds of a task without a time in the recipe."""


@dataclass(frozen=True)
class Shape:
    """A workflow with each task's seconds and output size."""

    name: str
    workflow: Workflow
    seconds: Mapping[TaskId, float]
    nbytes: Mapping[TaskId, float]
    """The output sizes, which are scaled to a ratio of communication to computation."""

    @cached_property
    def edges(self) -> tuple[tuple[TaskId, TaskId], ...]:
        """The edges: every producer and consumer of an output."""
        upstream = self.workflow.upstream
        return tuple((source, task) for task, sources in upstream.items() for source in sources)


@dataclass(frozen=True, slots=True)
class Step:
    """A task before it is part of a workflow."""

    category: str
    seconds: float
    nbytes: float
    upstream: Sequence[str]


def shape_of(name: str, steps: Mapping[str, Step]) -> Shape:
    """Build a shape from steps by key, each after its upstream steps."""
    tasks: dict[str, Task[..., None]] = {}
    outputs: dict[str, Output[None]] = {}
    for key, step in steps.items():
        made = tasks.setdefault(step.category, Task(_nothing, name=step.category))
        outputs[key] = made(key, *(outputs[source] for source in step.upstream))
    taken = {source for step in steps.values() for source in step.upstream}
    workflow = Workflow.of(*(output for key, output in outputs.items() if key not in taken))
    step_of = {task: steps[call.args[0]] for task, call in workflow.calls.items()}
    return Shape(
        name,
        workflow,
        {task: max(step.seconds, SHORTEST) for task, step in step_of.items()},
        {task: step.nbytes for task, step in step_of.items()},
    )


def _nothing(*_: object) -> None:
    """Do nothing: plans are only simulated."""


def generate(recipe: str, tasks: int, seed: int) -> Shape:
    """Generate a recipe's shape with about this many tasks."""
    for count in range(tasks, 10 * tasks):
        random.seed(seed)
        np.random.seed(seed)
        made = RECIPES[recipe](num_tasks=count)
        try:
            workflow = made.build_workflow()
        except ValueError:
            continue  # the run that it would grow has more tasks than that
        steps = {
            key: Step(
                category=workflow.nodes[key]["task"].name,
                seconds=workflow.nodes[key]["task"].runtime,
                nbytes=sum(file.size for file in workflow.nodes[key]["task"].output_files),
                upstream=made.tasks_parents.get(key, ()),
            )
            for key in workflow.nodes
        }
        return shape_of(f"{recipe}-{tasks}", _sorted(steps))
    raise ValueError(f"the recipe {recipe} gives no workflow of {tasks} to {10 * tasks} tasks")


def _sorted(steps: Mapping[str, Step]) -> dict[str, Step]:
    """Return the steps, each after its upstream steps."""
    ordered: dict[str, Step] = {}
    open_ = list(steps)[::-1]
    while open_:
        key = open_[-1]
        missing = [source for source in steps[key].upstream if source not in ordered]
        if key not in ordered and missing:
            open_ += missing
        else:
            ordered[open_.pop()] = steps[key]
    return ordered
