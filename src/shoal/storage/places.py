"""What a store's URL names: a server, several servers, or a cluster."""

from __future__ import annotations

from shoal.errors import SettingsError
from shoal.storage.resp import parse_url, urls_in
from shoal.storage.ring import Ring


def places(store: str) -> dict[str, str]:
    """The URLs of a store's servers, by the names that they have on rings; a cluster is one."""
    urls = urls_in(store)
    addresses = [parse_url(url) for url in urls]
    clustered = [address.cluster for address in addresses]
    if all(clustered):
        return {"cluster": store}
    if any(clustered):
        raise SettingsError(
            "store names a cluster and other servers: name nodes of one cluster, "
            "or servers that stand alone."
        )
    found: dict[str, str] = {}
    for url, address in zip(urls, addresses, strict=True):
        name = f"{address.path or f'{address.host}:{address.port}'}/{address.db}"
        if name in found:
            raise SettingsError(f"store names {address} twice: each shard is a server of its own.")
        found[name] = url
    return found


def is_cluster(store: str) -> bool:
    """Whether it is a cluster."""
    return "cluster" in places(store)


def is_spread(store: str) -> bool:
    """Whether it is more than one server."""
    return len(places(store)) > 1 or is_cluster(store)


def place_of(store: str, what: str) -> str:
    """The URL of the server that has what there is once in a store: its history, for example."""
    known = places(store)
    return known[Ring(known).place(what)]
