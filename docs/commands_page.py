"""Write the page of commands from their own `--help`: `python docs/commands_page.py FILE`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from shoal.cli.main import COMMANDS


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join(["# Commands", "", *_sections()])


def _sections() -> Iterator[str]:
    for name, summary in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"shoal {name}", description=summary)
        importlib.import_module(f"shoal.cli.{name}").configure(parser)
        yield f"## shoal {name}\n\n```text\n{parser.format_help().rstrip()}\n```\n"


if __name__ == "__main__":
    os.environ["COLUMNS"] = "88"
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
