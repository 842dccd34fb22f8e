"""`shoal`: finds the command, and turns errors into a line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence

from shoal.cli.terminal import replace_unknown
from shoal.errors import ShoalError, TaskError, UsageError
from shoal.execution.wording import printable

COMMANDS = {
    "demo": "run a workflow worth looking at",
    "run": "run a workflow from a file or module",
    "resume": "go on with a run that has no result yet",
    "attach": "wait for a run that was detached",
    "plan": "tell what running a workflow is predicted to do",
    "runs": "list the runs that are known",
    "show": "show what a run did, as a Gantt chart",
    "history": "see how workflows fared; move or forget runs",
    "cache": "list or forget the outputs that are kept across runs",
    "logs": "show what a run's tasks printed",
    "farm": "train and compare autoscalers in the simulated farm",
    "experiments": "run the papers' evaluation, and report it",
    "gateway": "serve sandboxes to this machine's clients",
    "invoker": "start the workers of large fan-outs, beside a gateway",
    "doctor": "tell what works on this machine",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0 if all went well, 1 after a failure, 2 for bad input."""
    args = list(sys.argv[1:] if argv is None else argv)
    replace_unknown(sys.stdout, sys.stderr)
    parser = argparse.ArgumentParser(
        prog="shoal",
        description="Run Python workflows on serverless workers.",
        epilog="`shoal COMMAND --help` tells more of a command. Settings come from arguments, "
        "shoal.toml and SHOAL_* variables, in that order.",
    )
    parser.add_argument("--version", action="version", version=_version())
    parser.add_argument("-v", "--verbose", action="store_true", help="log what happens")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = next((arg for arg in args if not arg.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=_sentence(summary))
        if name == wanted:
            importlib.import_module(f"shoal.cli.{name}").configure(command)
    parsed = parser.parse_args(args)
    level = logging.INFO if parsed.verbose else logging.WARNING
    shown = logging.StreamHandler()
    shown.setFormatter(_Printable("%(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[shown])
    return _carry_out(parsed)


class _Printable(logging.Formatter):
    """What is logged may have names and messages that tasks, or somebody on the network, chose."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with escapes for what a terminal would obey."""
        return printable(super().format(record), kept="\n\t")


def _carry_out(parsed: argparse.Namespace) -> int:
    try:
        importlib.import_module(f"shoal.cli.{parsed.command}").carry_out(parsed)
        sys.stdout.flush()
    except ShoalError as error:
        _tell(f"error: {error}", error)
        caller = isinstance(error, UsageError) and not isinstance(error, TaskError)
        return 2 if caller else 1
    except KeyboardInterrupt as error:
        _tell("interrupted", error)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0


def _tell(what: str, error: BaseException) -> None:
    said = "\n".join([what, *getattr(error, "__notes__", ())])
    print(printable(said, kept="\n\t"), file=sys.stderr)


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


def _version() -> str:
    from shoal import __version__

    return f"shoal {__version__}"


if __name__ == "__main__":
    sys.exit(main())
