"""Stores that other packages bring, by the schemes of their URLs."""

from __future__ import annotations

from collections.abc import Callable

from shoal.entry_points import STORES, brought
from shoal.storage.base import Store
from shoal.storage.resp import names_servers

StoreMaker = Callable[[str], Store]
"""Makes a store of its URL, which workers use as well."""


def store_maker(url: str) -> StoreMaker | None:
    """What makes the store at a URL, if a package brings it; None for Valkey and Redis."""
    if names_servers(url):
        return None
    maker: StoreMaker | None = brought(STORES, url.partition("://")[0])
    return maker
