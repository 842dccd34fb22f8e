"""Implement `shoal undeploy`: remove what `shoal deploy` has created."""

from __future__ import annotations

import argparse

from shoal.cli.deploy import TARGETS, module
from shoal.settings import resolve

_CREATING = ("lambda",)
"""The other targets only write files or build an image, which their own tools remove."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each engine on which `shoal deploy` creates something."""
    targets = parser.add_subparsers(dest="target", metavar="ENGINE", required=True)
    for name in _CREATING:
        title = TARGETS[name][1]
        each = targets.add_parser(name, help=title, description=f"Remove a deployment on {title}.")
        module(name).configure_undeploy(each)


def carry_out(args: argparse.Namespace) -> None:
    """Remove a deployment."""
    module(args.target).undeploy(args, resolve({}).data_folder().absolute(), print)
