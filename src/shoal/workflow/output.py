"""Define `Output`, the future result of calling a task.

An output is a node in a graph that grows as tasks are called. It holds only its own call, so
creating one takes about a microsecond. `Workflow.of` builds the graph.

It does not know how to run: `shoal.engine_hook` finds the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from shoal.engine_hook import engine
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.workflow.task import Task

T_co = TypeVar("T_co", covariant=True)


class Output(Generic[T_co]):
    """The future result of a task call: pass it to other tasks, or compute it."""

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
        """Start the workflow that ends here and return its `Run`."""
        return engine().submit((self,), options)

    def plan(self, **options: Any) -> Any:
        """Plan the workflow that ends here and return a `Preview`, without running anything.

        Args:
            **options: As for `compute`: `planner`, `deadline`, `budget`, `sla`, `workers`, …;
                `timeout` and `resume` don't affect the plan.
        """
        return engine().plan((self,), options)

    def draw(self) -> str:
        """Draw the workflow that ends here as text."""
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
            f"The output of {self.task.name!r} has not been computed, so it can't be pickled. "
            "Pass it to a task as an argument, or inside a list, tuple or dict. "
            "A task can't return it."
        )

    if not TYPE_CHECKING:  # so that type checkers reject loops over an output

        def __iter__(self) -> NoReturn:
            raise UsageError(
                f"The output of {self.task.name!r} has not been computed, so it can't be iterated. "
                "Iterate over it inside a task, or call compute() first."
            )

    def __bool__(self) -> bool:
        raise UsageError(
            f"The output of {self.task.name!r} has not been computed, so it has no truth value. "
            "Test it inside a task, or call compute() first."
        )
