"""Implement `shoal deploy`: prepare an engine for workers, with the packages that tasks need."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from shoal.settings import resolve
from shoal.storage.resp import with_certificates, with_reconnect_seconds

TARGETS = {
    "docker": ("shoal.engines.deploy_containers", "Docker"),
    "http": ("shoal.engines.deploy_http", "Cloud Run, Knative, OpenFaaS or Fn"),
    "lambda": ("shoal.engines.deploy_lambda", "AWS Lambda"),
    "podman": ("shoal.engines.deploy_containers", "Podman"),
}
"""The module and the name of each engine that can be deployed to."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each engine."""
    targets = parser.add_subparsers(dest="target", metavar="ENGINE", required=True)
    for name, (_, title) in TARGETS.items():
        each = targets.add_parser(name, help=title, description=f"Deploy to {title}.")
        module(name).configure(each)


def carry_out(args: argparse.Namespace) -> None:
    """Deploy to an engine."""
    settings = resolve({})
    folder = settings.data_folder().absolute()
    store = getattr(args, "store", None) or settings.store
    if store is not None:
        store = with_certificates(with_reconnect_seconds(store, settings.reconnect_seconds))
    module(args.target).deploy(args, folder, store, print)


def module(target: str) -> Any:
    """What deploys to an engine."""
    return importlib.import_module(TARGETS[target][0])
