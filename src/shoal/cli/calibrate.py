"""Implement `shoal farm calibrate`: fit a model of task durations by input size."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from shoal.cli.settings import configure_set, parse_assignments
from shoal.errors import UsageError
from shoal.import_path import import_first_from
from shoal.types import MEMORY_MB
from shoal.workflow import attribute_of

_IMAGES = "shoal.experiments.image_farm"


def configure(actions: Any) -> None:
    """Describe the command's arguments."""
    parser = actions.add_parser(
        "calibrate",
        help="fit a model of task durations by input size",
        description="Measure how long tasks take on a farm's worker for inputs of several sizes, "
        "fit a service-time model, and write it to a file for Farm(expected=...).",
    )
    parser.add_argument("--function", metavar="MODULE:NAME", default=f"{_IMAGES}:process_image",
                        help="the farm's function (default: the image example's)")  # fmt: skip
    parser.add_argument("--input", metavar="MODULE:NAME", default=f"{_IMAGES}:make_image",
                        help="the function that makes an input of a given size "
                        "(default: the image example's)")  # fmt: skip
    parser.add_argument("--sizes", metavar="N,...", default="512,1024,2048,4096",
                        help="input sizes to measure (default: %(default)s)")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=5, metavar="N",
                        help="tasks to measure for each size (default: %(default)s)")  # fmt: skip
    parser.add_argument("--memory-mb", type=int, default=MEMORY_MB, metavar="MB",
                        help="the worker's memory (default: %(default)s)")  # fmt: skip
    parser.add_argument("--file", metavar="FILE", help="write the model to this file")
    configure_set(parser)


def carry_out(args: argparse.Namespace) -> None:
    """Measure tasks, fit the model, print it, and write it to `--file` if given."""
    from shoal.farm.service_model import ServiceModel

    sizes = _sizes(args.sizes)
    if args.repeats < 1:
        raise UsageError(f"--repeats {args.repeats}: must be at least 1.")
    samples = _measure(args, sizes)
    model = ServiceModel.fitted(samples)
    print(f"{'size':>8}{'measured s':>12}{'model s':>12}")
    for size in sizes:
        measured = median(seconds for other, seconds in samples if other == size)
        print(f"{size:8}{measured:12.4f}{model.seconds(size):12.4f}")
    print(f"seconds = {model.quadratic:.4g} * size^2 + {model.constant:.4g}")
    if args.file:
        model.save(Path(args.file))
        print(f"written to {args.file}")


def _measure(args: argparse.Namespace, sizes: list[int]) -> list[tuple[float, float]]:
    """Run tasks one at a time on one worker; return each one's size and seconds."""
    from shoal.farm.streams import Farm
    from shoal.session import Session
    from shoal.types import Resources

    function, make = _function(args.function), _function(args.input)
    samples = []
    with (
        Session(**parse_assignments(args.assignments)) as session,
        Farm(_Timed(function), workers=1, tries=1, resources=Resources(memory_mb=args.memory_mb),
             session=session) as farm,
    ):  # fmt: skip
        for size in sizes:
            value = make(size)
            farm.submit(value).result()  # not counted: the first task imports packages
            samples += [(float(size), farm.submit(value).result()) for _ in range(args.repeats)]
    return samples


class _Timed:
    """A function that calls another and returns how many seconds that took."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, value: Any) -> float:
        began = time.perf_counter()
        self._function(value)
        return time.perf_counter() - began


def _sizes(text: str) -> list[int]:
    try:
        return sorted({int(each) for each in text.split(",")})
    except ValueError as error:
        raise UsageError(f"--sizes {text}: must be comma-separated integers.") from error


def _function(where: str) -> Callable[[Any], Any]:
    module, _, name = where.partition(":")
    import_first_from([str(Path.cwd())])
    try:
        found = attribute_of(module, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{where!r}: must be a function, as MODULE:NAME ({error}).") from error
    if not callable(found):
        raise UsageError(f"{where!r} is not a function.")
    function: Callable[[Any], Any] = found
    return function
