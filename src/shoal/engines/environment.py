"""The environment of a client or a function: what it is, as facts, and as requirements for pip."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata

from shoal.platform.events import Deployment

ENVIRONMENT_VARIABLE = "SHOAL_ENVIRONMENT"
"""Has the hash of the requirements that a function was deployed with."""


def described(deployment: Deployment, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What this process is, without any secret."""
    return {
        "shoal": metadata.version("shoal"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "deployment": deployment.id,
        "environment": variables.get(ENVIRONMENT_VARIABLE, ""),
    }


def requirements() -> tuple[list[str], list[str]]:
    """The packages that are installed here, as lines for pip; and those that pip can't install.

    Shoal itself is in neither: a deployment brings it along.
    """
    found: dict[str, str] = {}
    local: set[str] = set()
    for each in metadata.distributions():
        name = each.metadata["Name"]
        if name is None or name.lower() == "shoal":
            continue
        if _local(each):
            local.add(name)
        else:
            found.setdefault(name.lower().replace("_", "-"), f"{name}=={each.version}")
    return sorted(found.values(), key=str.lower), sorted(local)


def _local(distribution: metadata.Distribution) -> bool:
    """Whether a package was installed from a folder or a file of this machine."""
    origin = distribution.read_text("direct_url.json")
    return origin is not None and str(json.loads(origin).get("url", "")).startswith("file:")


def environment_hash(lines: Iterable[str]) -> str:
    """Names an environment by its requirements and Shoal's and Python's versions."""
    minor = ".".join(platform.python_version_tuple()[:2])
    text = "\n".join([f"shoal {metadata.version('shoal')}", f"python {minor}", *sorted(lines)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
