"""`Output`: what a task's call will return once its workflow has run.

An output is a node of a graph that grows by calling tasks. It knows its own call and nothing
else, so that making one costs about a microsecond; `Workflow.of` reads the graph off.

How outputs are run isn't known here: the session says so with `use_engine`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.workflow.task import Task

T_co = TypeVar("T_co", covariant=True)


class Engine(Protocol):
    """What runs outputs."""

    def compute(self, outputs: tuple[Output[Any], ...], options: dict[str, Any]) -> list[Any]:
        """Run the workflow of these outputs and return their values."""
        ...

    def submit(self, outputs: tuple[Output[Any], ...], options: dict[str, Any]) -> Any:
        """Start the workflow of these outputs and return a handle."""
        ...

    def plan(self, outputs: tuple[Output[Any], ...], options: dict[str, Any]) -> Any:
        """What running the workflow of these outputs is predicted to do."""
        ...


_engine: Engine | None = None


def use_engine(engine: Engine) -> None:
    """From now on, outputs are run by `engine`."""
    global _engine
    _engine = engine


def engine() -> Engine:
    """What outputs are run by: the session's, which is loaded when it is first needed."""
    if _engine is None:
        import_module("shoal.engine")
    assert _engine is not None
    return _engine


class Output(Generic[T_co]):
    """A call of a task: an argument of other tasks, or a result to compute."""

    __slots__ = ("args", "kwargs", "task")

    def __init__(self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.task = task
        self.args = args
        self.kwargs = kwargs

    def compute(self, **options: Any) -> T_co:
        """Run the workflow that ends here and return this output's value.

        Args:
            **options: `name`, `planner`, `workers`, `store`, `platform`, `timeout` and any other
                setting; see `shoal.Settings`.
        """
        value: T_co = engine().compute((self,), options)[0]
        return value

    def submit(self, **options: Any) -> Any:
        """Start the workflow that ends here; the handle has `result()`, `status()`, `cancel()`."""
        return engine().submit((self,), options)

    def plan(self, **options: Any) -> Any:
        """What running the workflow that ends here is predicted to do; nothing runs.

        Args:
            **options: As for `compute`: `planner`, `deadline`, `budget`, `sla`, `workers`, …;
                `timeout` and `resume` don't change the plan.
        """
        return engine().plan((self,), options)

    def draw(self) -> str:
        """The workflow that ends here, as text."""
        from shoal.workflow.drawing import draw_text
        from shoal.workflow.graph import Workflow

        return draw_text(Workflow.of(self))

    def _repr_html_(self) -> str:
        from shoal.workflow.drawing import draw_svg
        from shoal.workflow.graph import Workflow

        return draw_svg(Workflow.of(self))

    def __repr__(self) -> str:
        return f"<output of {self.task.name}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"The output of {self.task.name!r} isn't known yet, so it can't be sent to a worker. "
            "Pass it to a task as an argument, or in a list, a tuple or a dict's values; "
            "a task can't return it."
        )

    if not TYPE_CHECKING:  # so that type checkers refuse the loop too

        def __iter__(self) -> NoReturn:
            raise UsageError(
                f"The output of {self.task.name!r} isn't known yet, so it can't be looped over. "
                "Pass it to a task that does, or compute() it first."
            )

    def __bool__(self) -> bool:
        raise UsageError(
            f"The output of {self.task.name!r} isn't known yet, so it is neither true nor false. "
            "Pass it to a task that decides, or compute() it first."
        )
