"""Add up a thousand numbers with a tree of tiny tasks, and show which worker ran what."""

from shoal import Output, task
from shoal.execution.gantt import gantt_text


@task
def add(a: int, b: int) -> int:
    """Add two numbers: far less work than scheduling the task centrally would be."""
    return a + b


def tree(numbers: list[int]) -> Output[int]:
    """Build the sum of the numbers, whose count must be a power of two."""
    layer: list[Output[int]] = [add(a, b) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    while len(layer) > 1:
        layer = [add(a, b) for a, b in zip(layer[::2], layer[1::2], strict=True)]
    return layer[0]


if __name__ == "__main__":
    run = tree(list(range(1024))).submit(name="tree-reduction")
    print(run.result())
    print(gantt_text(run.timeline))
