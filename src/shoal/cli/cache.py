"""Implement `shoal cache`: list or delete cached task outputs."""

from __future__ import annotations

import argparse
import difflib
import time
from contextlib import closing

from shoal.cli.settings import configure_set, parse_assignments
from shoal.cli.terminal import print_table
from shoal.client.backends import open_cache
from shoal.errors import ShoalError, UsageError
from shoal.execution.formatting import counted
from shoal.settings import resolve
from shoal.storage.cache import Cache, CacheEntry


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("ls", help="list the tasks with cached outputs")
    configure_set(listing)
    clear = actions.add_parser("clear", help="delete the cached outputs of one task or all")
    clear.add_argument("name", metavar="NAME", nargs="?", help="the task's name; default: all")
    configure_set(clear)


def carry_out(args: argparse.Namespace) -> None:
    """List or clear the cache that the settings name."""
    with closing(open_cache(resolve(parse_assignments(args.assignments)))) as cache:
        try:
            if args.action == "ls":
                _list(cache)
            else:
                _clear(cache, args.name)
        except OSError as error:
            raise ShoalError(
                f"The cache in {cache.where} can't be used: {error.strerror or error}."
            ) from error


def _list(cache: Cache) -> None:
    tasks = _by_task(cache)
    if not tasks:
        print(f"{cache.where} has no cached outputs. Use @task(cache=True) to cache a task's.")
        return
    titles = ("task", "outputs", "bytes", "last used")
    rows = (_row(task, entries) for task, entries in tasks.items())
    print_table(titles, rows, numbers=("outputs", "bytes"), words=("task",))


def _row(task: str, entries: list[CacheEntry]) -> list[str]:
    used = time.localtime(max(entry.used for entry in entries))
    nbytes = sum(entry.nbytes for entry in entries)
    return [task, f"{len(entries):,}", f"{nbytes:,}", time.strftime("%Y-%m-%d %H:%M:%S", used)]


def _clear(cache: Cache, name: str | None) -> None:
    tasks = _by_task(cache)
    if name is not None and name not in tasks:
        near = difflib.get_close_matches(name, tasks, 1, 0.6)
        hint = f"did you mean {near[0]!r}?" if near else "`shoal cache ls` lists the tasks that do."
        raise UsageError(f"Task {name!r} has no cached outputs; {hint}")
    chosen = tasks if name is None else {name: tasks[name]}
    entries = [entry for found in chosen.values() for entry in found]
    cache.remove(entry.name for entry in entries)
    nbytes = sum(entry.nbytes for entry in entries)
    print(f"deleted {counted(len(entries), 'output')}, {nbytes:,} bytes")


def _by_task(cache: Cache) -> dict[str, list[CacheEntry]]:
    found: dict[str, list[CacheEntry]] = {}
    for entry in sorted(cache.entries(), key=lambda entry: entry.name):
        found.setdefault(entry.task, []).append(entry)
    return found
