"""Wrap saga's published schedulers as planners.

1. They plan with the true costs: an edge takes as long as saving the output and fetching it.
2. Each worker is a node; all are alike, and so are the links between them.
3. A schedule becomes a plan: a task's node is its worker, the order of starts its rank.
4. saga looks tasks up by going through all of them; here it looks into dicts, with the same result.
"""

import random
from collections.abc import Callable, Mapping
from functools import cached_property

from saga import Network, NetworkEdge, NetworkNode, Schedule, Scheduler, TaskGraph
from saga import TaskGraphEdge as Edge
from saga import TaskGraphNode as Node
from saga import schedulers as saga

from shoal.execution.plan import Placement, Plan
from shoal.planning.base import Conditions
from shoal.types import TaskId, WorkerId
from shoal.workflow import Workflow

SEED = 1
"""The seed of WBA, the only randomized scheduler."""

SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "HEFT": saga.HeftScheduler,
    "CPOP": saga.CpopScheduler,
    "ETF": saga.ETFScheduler,
    "BIL": saga.BILScheduler,
    "DPS": saga.DPSScheduler,
    "Duplex": saga.DuplexScheduler,
    "FCP": saga.FCPScheduler,
    "FLB": saga.FLBScheduler,
    "GDL": saga.GDLScheduler,
    "HBMCT": saga.HbmctScheduler,
    "MaxMin": saga.MaxMinScheduler,
    "MCT": saga.MCTScheduler,
    "MET": saga.METScheduler,
    "MinMin": saga.MinMinScheduler,
    "MSBC": saga.MsbcScheduler,
    "MST": saga.MSTScheduler,
    "OLB": saga.OLBScheduler,
    "Suffer": saga.SufferageScheduler,
    "WBA": saga.WBAScheduler,
    "Fastest": saga.FastestNodeScheduler,
}


class NoPlanError(Exception):
    """A scheduler returned no plan; the message says why."""


class SagaPlanner:
    """A planner that uses one of saga's schedulers."""

    def __init__(self, make: Callable[[], Scheduler]) -> None:
        self._make = make

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Convert the scheduler's schedule to a plan.

        Raises:
            NoPlanError: The schedule lacks tasks.
        """
        random.seed(SEED)
        schedule = self._make().schedule(_network(conditions.workers), _graph(workflow, conditions))
        number = {task: position for position, task in enumerate(workflow.calls)}
        rows = [row for rows in schedule.mapping.values() for row in rows if row.name in number]
        rows.sort(key=lambda row: (row.start, row.end, number[TaskId(row.name)]))
        placements = {
            TaskId(row.name): Placement(WorkerId(row.node), conditions.resources) for row in rows
        }
        if len(placements) < len(workflow):
            raise NoPlanError("leaves tasks out of its schedule")
        ranks = {task: rank for rank, task in enumerate(placements)}
        return Plan(workflow, placements, linger=None, ranks=ranks)


def _network(workers: int) -> Network:
    names = [f"w{number}" for number in range(workers)]
    pairs = [(a, b) for position, a in enumerate(names) for b in names[position:]]
    return _Network(
        nodes=frozenset(NetworkNode(name=name, speed=1.0) for name in names),
        edges=frozenset(
            NetworkEdge(source=a, target=b, speed=float("inf") if a == b else 1.0) for a, b in pairs
        ),
    )


def _graph(workflow: Workflow, conditions: Conditions) -> TaskGraph:
    """Convert a workflow for saga, in seconds; it must have one first and one last task."""
    costs, resources = conditions.predictions.at("median"), conditions.resources
    nbytes: dict[TaskId, int] = {}
    nodes: list[Node] = []
    edges: list[Edge] = []
    for task, sources in workflow.upstream.items():
        taken = sum(nbytes[source] for source in sources)
        nbytes[task] = costs.output_nbytes(task, taken)
        nodes.append(Node(name=task, cost=costs.execution(task, taken, resources)))
        for source in sources:
            save = costs.transfer_of(source, "save", nbytes[source], resources)
            fetch = costs.transfer_of(source, "fetch", nbytes[source], resources)
            edges.append(Edge(source=source, target=task, size=save + fetch))
    first = [task for task, sources in workflow.upstream.items() if not sources]
    last = [task for task in workflow.calls if not workflow.downstream(task)]
    if len(first) > 1:
        nodes.append(Node(name="first", cost=0.0))
        edges += [Edge(source="first", target=task, size=0.0) for task in first]
    if len(last) > 1:
        nodes.append(Node(name="last", cost=0.0))
        edges += [Edge(source=task, target="last", size=0.0) for task in last]
    return _Graph(tasks=frozenset(nodes), dependencies=frozenset(edges))


def _name(named: str | Node | NetworkNode) -> str:
    return named if isinstance(named, str) else named.name


class _Network(Network):  # type: ignore[misc]
    """saga's class, with fast look-ups."""

    @cached_property
    def _nodes(self) -> Mapping[str, NetworkNode]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _links(self) -> Mapping[tuple[str, str], NetworkEdge]:
        forth = {(edge.source, edge.target): edge for edge in self.edges}
        return forth | {(b, a): edge for (a, b), edge in forth.items()}

    def get_node(self, node: str | NetworkNode) -> NetworkNode:
        return self._nodes[_name(node)]

    def get_edge(self, source: str | NetworkNode, target: str | NetworkNode) -> NetworkEdge:
        return self._links[_name(source), _name(target)]


class _Graph(TaskGraph):  # type: ignore[misc]
    """saga's class, with fast look-ups."""

    @cached_property
    def _tasks(self) -> Mapping[str, Node]:
        return {task.name: task for task in self.tasks}

    @cached_property
    def _edges(self) -> Mapping[tuple[str, str], Edge]:
        return {(edge.source, edge.target): edge for edge in self.dependencies}

    @cached_property
    def _into(self) -> Mapping[str, list[Edge]]:
        graph = self.graph
        return {name: [self._edges[edge] for edge in graph.in_edges(name)] for name in graph}

    @cached_property
    def _out_of(self) -> Mapping[str, list[Edge]]:
        graph = self.graph
        return {name: [self._edges[edge] for edge in graph.out_edges(name)] for name in graph}

    def get_task(self, name: str | Node) -> Node:
        return self._tasks[_name(name)]

    def get_dependency(self, source: str | Node, target: str | Node) -> Edge:
        return self._edges[_name(source), _name(target)]

    def in_edges(self, task: str | Node) -> list[Edge]:
        return self._into[_name(task)]

    def out_edges(self, task: str | Node) -> list[Edge]:
        return self._out_of[_name(task)]


def _is_scheduled(schedule: Schedule, name: str) -> bool:
    return name in schedule._task_map


Schedule.is_scheduled = _is_scheduled
