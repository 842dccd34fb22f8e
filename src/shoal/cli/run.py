"""`shoal run FILE_OR_MODULE:OUTPUT`: run a workflow and print its value."""

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

from shoal.cli.planning import configure_planning, planning_options
from shoal.cli.settings import assigned, configure_set
from shoal.cli.terminal import colored, terminal_width
from shoal.engine import default_engine, submit
from shoal.errors import ShoalError, UsageError
from shoal.execution.wording import counted
from shoal.settings import NAMES
from shoal.workflow import Output, Outputs

_OPTIONS = {"name", "timeout", "deadline", "budget", "sla"}
"""What a run takes besides settings."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    configure_workflow(parser)
    configure_planning(parser)
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="give up after so long")
    parser.add_argument(
        "--report", action="store_true", help="compare what was predicted with what happened"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="find tasks that change their inputs in place; slower",
    )


def configure_workflow(parser: argparse.ArgumentParser) -> None:
    """Let a command take a workflow."""
    parser.add_argument(
        "workflow",
        metavar="FILE_OR_MODULE:OUTPUT",
        help="where the output is, such as pipeline.py:report or package.module:report; "
        "OUTPUT is an output, a list of outputs, or a function that returns either",
    )
    configure_set(parser, "a setting, or a parameter of the function")
    parser.add_argument("--name", help="what the workflow is called in history")


def carry_out(args: argparse.Namespace) -> None:
    """Run the workflow."""
    given = assigned(args.assignments)
    options = planning_options(args)
    if args.check:
        options["check_inputs"] = True
    wanted = load_wanted(args.workflow, given)
    run = submit(wanted, **({"name": args.name} | given | options))
    try:
        values = run.values(args.timeout)
    except BaseException as error:
        run.give_up(error)
        raise
    pprint.pprint(values[0] if isinstance(wanted, Output) else values)
    sys.stdout.flush()
    if args.report:
        print(run.report(terminal_width(), colored(sys.stderr)), file=sys.stderr)
    elsewhere = "".join(f" --set {name}=…" for name in ("store", "folder") if name in given)
    print(f"run {run.id}: {counted(len(run.workflow), 'task')} in {run.makespan:.3f} s "
          f"(`shoal show {run.id}{elsewhere}` shows them)", file=sys.stderr)  # fmt: skip


def load_wanted(where: str, given: dict[str, Any]) -> Outputs:
    """What is at `FILE_OR_MODULE:OUTPUT`; takes its function's parameters out of `given`."""
    source, colon, name = where.rpartition(":")
    if not colon or not source or not name:
        raise UsageError(f"{where!r}: write FILE_OR_MODULE:OUTPUT, such as pipeline.py:report.")
    opened = default_engine.opened
    module = _load(source)
    if default_engine.opened > opened:
        print(f"note: {source} runs something itself when it is loaded. Put that under "
              f'`if __name__ == "__main__":`, and `shoal` runs only what it is asked for.',
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
        with _blamed(where):
            found = found(**parameters)
    if not isinstance(found, Output) and not _outputs(found):
        raise UsageError(
            f"{where} is {type(found).__name__}, not an output or a list of outputs: call a "
            "function decorated with @task, or name a function that does."
        )
    for option in _OPTIONS & given.keys():
        raise UsageError(f"--set {option}: that is no setting; give --{option}.")
    wanted: Outputs = found
    return wanted


def _outputs(found: Any) -> bool:
    """Whether it is a list of outputs."""
    listed = isinstance(found, list | tuple) and len(found) > 0
    return listed and all(isinstance(item, Output) for item in found)


def _parameters(function: Any, given: dict[str, Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise UsageError(f"{function!r} does not tell its parameters: {error}.") from error
    taken = {name: given.pop(name) for name in list(given) if name in parameters}
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in taken
    ]
    unknown = [name for name in given if name not in NAMES]
    if missing:
        raise UsageError(
            f"{_name(function)} needs {', '.join(missing)}: give --set {missing[0]}=VALUE."
        )
    if unknown:
        raise UsageError(
            f"--set {unknown[0]}: neither a parameter of {_name(function)} "
            f"({', '.join(parameters) or 'it has none'}) nor a setting ({', '.join(NAMES)})."
        )
    return taken


def _load(source: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    if not source.endswith(".py"):
        return _imported(source)
    path = Path(source).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"There is no file {source}.")
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    cloudpickle.register_pickle_by_value(module)  # as what a script defines
    with _blamed(source):
        spec.loader.exec_module(module)
    return module


def _imported(name: str) -> ModuleType:
    with _blamed(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(f"{error.name}.")):
                raise UsageError(
                    f"There is no module {name!r} here; a file's name ends with .py."
                ) from error
            raise


@contextlib.contextmanager
def _blamed(source: str) -> Iterator[None]:
    """Say of an exception in the user's code what it was and where, in a line."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        trace = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in trace if frame.filename != __file__]
        at = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        at = "" if isinstance(error, SyntaxError) else at
        raise UsageError(f"{source} can't be used: {type(error).__name__}: {error}{at}.") from error


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", repr(function)))
