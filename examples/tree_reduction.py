"""A thousand numbers, added up by a tree of tiny tasks; then a look at what ran where."""

from shoal import Output, task
from shoal.execution.gantt import gantt_text


@task
def add(a: int, b: int) -> int:
    """A task so small that any scheduler in its way would cost more than it does."""
    return a + b


def tree(numbers: list[int]) -> Output[int]:
    """The sum of the numbers, whose count is a power of two."""
    layer: list[Output[int]] = [add(a, b) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    while len(layer) > 1:
        layer = [add(a, b) for a, b in zip(layer[::2], layer[1::2], strict=True)]
    return layer[0]


if __name__ == "__main__":
    run = tree(list(range(1024))).submit(name="tree-reduction")
    print(run.result())
    print(gantt_text(run.timeline))
