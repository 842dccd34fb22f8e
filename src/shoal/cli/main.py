"""Run the `shoal` command: dispatch to a subcommand and turn errors into an exit code."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence

from shoal.cli.terminal import replace_unknown
from shoal.errors import ShoalError, TaskError, UsageError
from shoal.execution.formatting import printable

COMMANDS = {
    "demo": "run a sample workflow and show its Gantt chart",
    "run": "run a workflow from a file or module",
    "resume": "resume an unfinished run",
    "attach": "wait for a detached run",
    "plan": "predict how long a workflow takes and what it costs",
    "runs": "list runs",
    "show": "show a run as a Gantt chart",
    "history": "compare past runs; export, import or delete them",
    "cache": "list or delete cached task outputs",
    "logs": "show what a run's tasks printed",
    "farm": "train, evaluate and calibrate autoscalers of farms",
    "experiments": "run the papers' evaluation and report on it",
    "gateway": "start a gateway that runs workers for several clients",
    "warm": "have workers of an engine ready before a run",
    "deploy": "prepare an engine for workers",
    "undeploy": "remove what `shoal deploy` has created",
    "settings": "show each setting and where its value comes from",
    "doctor": "check what works on this machine",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 on success, 1 on failure, 2 for bad input."""
    args = list(sys.argv[1:] if argv is None else argv)
    replace_unknown(sys.stdout, sys.stderr)
    parser = argparse.ArgumentParser(
        prog="shoal",
        description="Run Python workflows on serverless workers.",
        epilog="`shoal COMMAND --help` describes a command. Settings come from arguments, "
        "SHOAL_* variables and shoal.toml, in that order of precedence.",
    )
    parser.add_argument("--version", action="version", version=_version())
    parser.add_argument("-v", "--verbose", action="store_true", help="log progress to stderr")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = next((arg for arg in args if not arg.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=_sentence(summary))
        if name == wanted:
            importlib.import_module(f"shoal.cli.{name}").configure(command)
    parsed = parser.parse_args(args)
    level = logging.INFO if parsed.verbose else logging.WARNING
    handler = logging.StreamHandler()
    handler.setFormatter(_EscapingFormatter("%(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    return _carry_out(parsed)


class _EscapingFormatter(logging.Formatter):
    """Escapes control characters, because tasks and remote peers choose parts of a message."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, with control characters escaped."""
        return printable(super().format(record), kept="\n\t")


def _carry_out(parsed: argparse.Namespace) -> int:
    try:
        importlib.import_module(f"shoal.cli.{parsed.command}").carry_out(parsed)
        sys.stdout.flush()
    except ShoalError as error:
        _print_error(f"error: {error}", error)
        caller = isinstance(error, UsageError) and not isinstance(error, TaskError)
        return 2 if caller else 1
    except KeyboardInterrupt as error:
        _print_error("interrupted", error)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0


def _print_error(message: str, error: BaseException) -> None:
    text = "\n".join([message, *getattr(error, "__notes__", ())])
    print(printable(text, kept="\n\t"), file=sys.stderr)


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


def _version() -> str:
    from shoal import __version__

    return f"shoal {__version__}"


if __name__ == "__main__":
    sys.exit(main())
