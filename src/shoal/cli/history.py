"""Implement `shoal history`: compare past runs with their plans; export, import or delete them."""

from __future__ import annotations

import argparse
import difflib
import gzip
import sys
import zlib
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import IO

from shoal.cli.runs import NO_RUNS, configure_most, start_time
from shoal.cli.settings import configure_set, parse_assignments
from shoal.cli.terminal import NARROW, print_table
from shoal.cli.trends import met_sla, relative_error, trends
from shoal.client.backends import history_folder, open_history
from shoal.errors import HistoryDamaged, UsageError
from shoal.execution.formatting import counted, listed, percent, printable
from shoal.metadata.history import ALL, RESUMED, History, RunRecord, export_runs, import_runs
from shoal.metadata.sqlite import set_aside
from shoal.settings import resolve

_TITLES = ("started", "planner", "workers", "makespan", "predicted", "error", "SLA", "execute",
           "start", "transfer")  # fmt: skip
_NAME = "the workflow's name, or FILE:FUNCTION if several workflows have that name"
_KINDS = ("execute", "start", "transfer")
"""The predicted quantities whose errors are shown."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, summary: str, more: str = "") -> argparse.ArgumentParser:
        description = f"{summary[0].upper()}{summary[1:]}.{more}"
        parser = actions.add_parser(name, help=summary, description=description)
        configure_set(parser)
        return parser

    show = action(
        "show",
        "compare a workflow's latest runs with their predictions",
        " Without NAME, list all workflows that have runs. The column error shows how much longer "
        "a run took than predicted; execute, start and transfer show the median errors of the "
        "predictions of task, start and transfer times.",
    )
    show.epilog = NARROW
    show.add_argument("name", metavar="NAME", nargs="?", help=_NAME)
    configure_most(show, "show at most this many runs")
    export = action("export", "write runs to a file, as JSON lines")
    export.add_argument("file", metavar="FILE", help="compressed if it ends with .gz; - is stdout")
    export.add_argument("name", metavar="NAME", nargs="?", help="only the runs of this workflow")
    load = action("import", "add the runs of an exported file")
    load.add_argument("file", metavar="FILE", help="compressed if it ends with .gz; - is stdin")
    clear = action("clear", "delete the runs of one workflow or all")
    clear.add_argument("name", metavar="NAME", nargs="?", help=_NAME)
    clear.add_argument("--all", action="store_true", help="delete the runs of all workflows")


def carry_out(args: argparse.Namespace) -> None:
    """Run the action on the history that the settings name."""
    if args.action == "clear" and bool(args.name) == args.all:
        raise UsageError("Give either a workflow's name, or --all to delete all runs.")
    settings = resolve(parse_assignments(args.assignments))
    try:
        with closing(open_history(settings)) as history:
            if args.action != "import" and args.name is not None:
                args.name = key_named(history, args.name)
            _ACTIONS[args.action](history, args)
    except HistoryDamaged:
        if args.action != "clear" or not args.all:
            raise
        aside = set_aside(history_folder(settings))
        print(f"Moved the damaged history to {aside}.")


def key_named(history: History, name: str) -> str:
    """Return the key of the workflow with this name; a key stands for itself."""
    known = history.keys()
    if name in known:
        return name
    if not known:
        raise UsageError(f"There are no runs of {name!r}, nor of any other workflow.")
    names = {key: history.runs(key=key, most=1)[0].name for key in known}
    found = [key for key, each in names.items() if each == name]
    if len(found) == 1:
        return found[0]
    if found:
        shown = listed([printable(each) for each in found])
        raise UsageError(f"{len(found)} workflows are named {name!r}. Give one of {shown}.")
    shown = listed([printable(each) for each in dict.fromkeys(names.values())])
    near = difflib.get_close_matches(name, names.values(), 1, 0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {shown}."
    raise UsageError(f"There are no runs of {name!r}; {hint}")


def _show(history: History, args: argparse.Namespace) -> None:
    if args.name is None:
        _list(history)
        return
    runs = history.runs(key=args.name, most=args.most)
    print_table(
        _TITLES,
        map(_row, runs),
        numbers=[title for title in _TITLES if title not in ("started", "planner", "SLA")],
        words=("SLA",),
        spare=("planner", "workers", "transfer", "start"),
    )
    lines = trends(runs[::-1])
    if lines:
        print("", *map(printable, lines), sep="\n")


def _list(history: History) -> None:
    """Print the workflows that have runs, latest first."""
    runs: dict[str, list[RunRecord]] = {}
    for run in history.runs(most=ALL):
        runs.setdefault(run.key, []).append(run)
    if not runs:
        print(NO_RUNS)
        return
    names = Counter(found[0].name for found in runs.values())
    rows = (
        (
            found[0].name if names[found[0].name] == 1 else key,
            f"{len(found):,}",
            start_time(found[0]),
        )
        for key, found in runs.items()
    )
    print_table(("workflow", "runs", "latest"), rows, numbers=("runs",), words=("workflow",))


def _row(run: RunRecord) -> list[str]:
    error, within = relative_error(run), met_sla(run)
    level = "" if run.sla == "median" else run.sla
    if run.outcome == RESUMED:
        level = "resumed"
    elif run.outcome != "done":
        level = "failed"
    elif within is not None:
        level += " met" if within else " missed"
    return [
        start_time(run),
        run.planner or "-",
        f"{run.workers:,}",
        f"{run.makespan:,.3f} s",
        "-" if run.predicted is None else f"{run.predicted:,.3f} s",
        "-" if error is None else percent(error, "+"),
        level,
        *(percent(run.quality[kind]) if kind in run.quality else "-" for kind in _KINDS),
    ]


def _export(history: History, args: argparse.Namespace) -> None:
    path, count = Path(args.file), 0
    if args.file == "-":
        for line in export_runs(history, args.name):
            print(line)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _opened(path, "wt") as file:
            for line in export_runs(history, args.name):
                file.write(f"{line}\n")
                count += 1
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror or error}.") from error
    print(f"wrote {counted(count, 'run')} to {path}")


def _import(history: History, args: argparse.Namespace) -> None:
    path = Path(args.file)
    try:
        if args.file == "-":
            imported = import_runs(history, sys.stdin, Path("stdin"))
        else:
            with _opened(path, "rt") as file:
                imported = import_runs(history, file, path)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} can't be read: {reason}.") from error
    text = f"added {counted(imported.new, 'run')} to the history in {history.where}"
    if imported.new < imported.runs:
        text += f"; {imported.runs - imported.new:,} were already there"
    if imported.kept < imported.runs:
        text += f"; {imported.kept:,} of {imported.runs:,} are kept (see `history_runs`)"
    print(text)


def _clear(history: History, args: argparse.Namespace) -> None:
    print(f"deleted {counted(history.clear(args.name), 'run')}")


_ACTIONS = {"show": _show, "export": _export, "import": _import, "clear": _clear}


def _opened(path: Path, mode: str) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, mode, encoding="utf-8")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8")
