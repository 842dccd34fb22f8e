"""The same entry points in a zygote that may not create namespaces."""

from platform_entries import act
from shoal.platform import namespaces

__all__ = ["act"]


def _refuse() -> None:
    raise PermissionError(1, "Operation not permitted")


namespaces.enter = _refuse
