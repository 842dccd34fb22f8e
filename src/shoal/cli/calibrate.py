"""`shoal farm calibrate`: measure how long tasks take by the size of their inputs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from shoal.cli.settings import assigned, configure_set
from shoal.errors import UsageError
from shoal.workflow import attribute_of

_IMAGES = "shoal.experiments.image_farm"


def configure(actions: Any) -> None:
    """Describe the command's arguments."""
    parser = actions.add_parser(
        "calibrate",
        help="measure how long tasks take by the size of their inputs",
        description="Measure on a farm's worker how long tasks take by the size of their inputs, "
        "fit a service-time model, and write it to a file for Farm(expected=...).",
    )
    parser.add_argument("--function", metavar="MODULE:NAME", default=f"{_IMAGES}:process_image",
                        help="what a worker does; default: the image example's")  # fmt: skip
    parser.add_argument("--input", metavar="MODULE:NAME", default=f"{_IMAGES}:make_image",
                        help="makes an input of a size")  # fmt: skip
    parser.add_argument("--sizes", metavar="N,...", default="512,1024,2048,4096")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="tasks of each size")
    parser.add_argument("--memory-mb", type=int, default=2048, metavar="MB", help="of the worker")
    parser.add_argument("--file", metavar="FILE", help="where to write the model")
    configure_set(parser)


def carry_out(args: argparse.Namespace) -> None:
    """Measure, fit, print, and write the model if that is wanted."""
    from shoal.farm.calibration import ServiceModel

    sizes = _sizes(args.sizes)
    if args.repeats < 1:
        raise UsageError(f"--repeats {args.repeats}: at least 1.")
    samples = _measured(args, sizes)
    model = ServiceModel.fitted(samples)
    print(f"{'size':>8}{'measured s':>12}{'model s':>12}")
    for size in sizes:
        taken = median(seconds for other, seconds in samples if other == size)
        print(f"{size:8}{taken:12.4f}{model.seconds(size):12.4f}")
    print(f"seconds = {model.quadratic:.4g} * size^2 + {model.constant:.4g}")
    if args.file:
        model.save(Path(args.file))
        print(f"written to {args.file}")


def _measured(args: argparse.Namespace, sizes: list[int]) -> list[tuple[float, float]]:
    """Sizes and seconds, of tasks that one worker does one after the other."""
    from shoal.session import Session
    from shoal.streams import Farm
    from shoal.types import Resources

    function, make = _function(args.function), _function(args.input)
    samples = []
    with (
        Session(**assigned(args.assignments)) as session,
        Farm(_Timed(function), workers=1, tries=1, resources=Resources(memory_mb=args.memory_mb),
             session=session) as farm,
    ):  # fmt: skip
        for size in sizes:
            value = make(size)
            farm.submit(value).result()  # the first isn't counted: it loads what it needs
            samples += [(float(size), farm.submit(value).result()) for _ in range(args.repeats)]
    return samples


class _Timed:
    """Calls a function, and tells how long that took."""

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
        raise UsageError(f"--sizes {text}: give whole numbers, with commas.") from error


def _function(where: str) -> Callable[[Any], Any]:
    module, _, name = where.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = attribute_of(module, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{where!r}: write MODULE:NAME of a function ({error}).") from error
    if not callable(found):
        raise UsageError(f"{where!r} is no function.")
    function: Callable[[Any], Any] = found
    return function
