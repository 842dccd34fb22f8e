"""Implement `shoal run FILE_OR_MODULE:OUTPUT`: run a workflow and print its value."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import pprint
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from shoal.cli.plan_options import configure_planning, planning_options
from shoal.cli.settings import configure_set, parse_assignments
from shoal.cli.terminal import colored, terminal_width
from shoal.engine import default_engine, submit
from shoal.errors import ShoalError, UsageError
from shoal.execution.formatting import counted
from shoal.import_path import import_first_from
from shoal.settings import NAMES
from shoal.workflow import Output, Outputs

_OPTIONS = {"name", "timeout", "deadline", "budget", "sla"}
"""The options of a run that are not settings."""
_WHERE = ("store", "history_url", "folder")
"""Settings without which other commands don't find the run."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    configure_workflow(parser)
    configure_planning(parser)
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="cancel the run after this long"
    )
    parser.add_argument("--report", action="store_true", help="compare the run with its prediction")
    parser.add_argument(
        "--check",
        action="store_true",
        help="detect tasks that modify their inputs in place (slower)",
    )


def configure_workflow(parser: argparse.ArgumentParser) -> None:
    """Add the workflow argument to a command."""
    parser.add_argument(
        "workflow",
        metavar="FILE_OR_MODULE:OUTPUT",
        help="the workflow, such as pipeline.py:report or package.module:report; OUTPUT names an "
        "output, a list of outputs, or a function that returns either",
    )
    configure_set(parser, "a setting, or an argument of the function")
    parser.add_argument("--name", help="the workflow's name in the history")


def carry_out(args: argparse.Namespace) -> None:
    """Run the workflow and print its value."""
    given = parse_assignments(args.assignments)
    options = planning_options(args)
    if args.check:
        options["check_inputs"] = True
    wanted = load_wanted(args.workflow, given)
    run = submit(wanted, **({"name": args.name} | given | options))
    try:
        values = run.values(args.timeout)
    except BaseException as error:  # the command's outermost edge: Ctrl-C ends the run, too
        run.give_up(error)
        raise
    pprint.pprint(values[0] if isinstance(wanted, Output) else values)
    sys.stdout.flush()
    if args.report:
        print(run.report(terminal_width(), colored(sys.stderr)), file=sys.stderr)
    elsewhere = "".join(f" --set {name}=…" for name in _WHERE if name in given)
    print(f"run {run.id}: {counted(len(run.workflow), 'task')} in {run.makespan:.3f} s "
          f"(`shoal show {run.id}{elsewhere}` shows them)", file=sys.stderr)  # fmt: skip


def load_wanted(where: str, given: dict[str, Any]) -> Outputs:
    """Load the outputs at `FILE_OR_MODULE:OUTPUT`, moving its arguments out of `given`."""
    source, colon, name = where.rpartition(":")
    if not colon or not source or not name:
        raise UsageError(f"{where!r}: must be FILE_OR_MODULE:OUTPUT, such as pipeline.py:report.")
    opened = default_engine.opened
    module = _load(source)
    if default_engine.opened > opened:
        print(f"note: {source} ran a workflow while it was imported. Move that code under "
              '`if __name__ == "__main__":`, so that `shoal` runs only the output you name.',
              file=sys.stderr)  # fmt: skip
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            outputs = [key for key, value in vars(module).items() if isinstance(value, Output)]
            hint = f" It has the outputs {', '.join(outputs)}." if outputs else ""
            raise UsageError(f"{source} has no {name!r}.{hint}")
        found = getattr(found, part)
    if callable(found) and not isinstance(found, Output):
        parameters = _parameters(found, given)
        with _user_errors(where):
            found = found(**parameters)
    if not isinstance(found, Output) and not _outputs(found):
        raise UsageError(
            f"{where} is {type(found).__name__}, not an output or a list of outputs. Call a "
            "function decorated with @task, or name a function that does."
        )
    for option in _OPTIONS & given.keys():
        raise UsageError(f"--set {option}: not a setting; use --{option}.")
    wanted: Outputs = found
    return wanted


def _outputs(found: Any) -> bool:
    """Return whether an object is a list of outputs."""
    listed = isinstance(found, list | tuple) and len(found) > 0
    return listed and all(isinstance(item, Output) for item in found)


def _parameters(function: Any, given: dict[str, Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise UsageError(f"The parameters of {function!r} are unknown: {error}.") from error
    arguments = {name: given.pop(name) for name in list(given) if name in parameters}
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in arguments
    ]
    unknown = [name for name in given if name not in NAMES]
    if missing:
        raise UsageError(
            f"{_name(function)} needs {', '.join(missing)}; add --set {missing[0]}=VALUE."
        )
    if unknown:
        raise UsageError(
            f"--set {unknown[0]}: neither a parameter of {_name(function)} "
            f"({', '.join(parameters) or 'it has none'}) nor a setting ({', '.join(NAMES)})."
        )
    return arguments


def _load(source: str) -> ModuleType:
    import_first_from([str(Path.cwd())])
    if not source.endswith(".py"):
        return _imported(source)
    path = Path(source).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"There is no file {source}.")
    import_first_from([str(path.parent)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    cloudpickle.register_pickle_by_value(module)  # as for a script: workers can't import it
    with _user_errors(source):
        spec.loader.exec_module(module)
    return module


def _imported(name: str) -> ModuleType:
    with _user_errors(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(f"{error.name}.")):
                raise UsageError(
                    f"There is no module {name!r}; the name of a file must end with .py."
                ) from error
            raise


@contextlib.contextmanager
def _user_errors(source: str) -> Iterator[None]:
    """Turn an exception of the user's code into a one-line error that says where it arose."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:  # the edge to the user's module: it becomes a `UsageError`
        trace = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in trace if frame.filename != __file__]
        at = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        at = "" if isinstance(error, SyntaxError) else at
        raise UsageError(f"{source} failed: {type(error).__name__}: {error}{at}.") from error


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", repr(function)))
