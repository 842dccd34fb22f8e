"""Tests of plug-ins: suites that stores, platforms, engines and planners must pass, and fakes.

1. A suite is a class. Subclass it in a test module, and override the fixture that makes the object
   under test. Suites need pytest (`pip install 'shoal[testing]'`); fakes don't.
2. Names are imported on first use, so `import shoal.testing` needs no pytest.
3. If pytest is running, it rewrites the assertions of all modules here: a failure shows the values.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.testing.autoscaler_contract import AutoscalerContract
    from shoal.testing.engine_contract import EngineContract
    from shoal.testing.function_engine_contract import FunctionEngineContract
    from shoal.testing.inprocess_platform import InProcessPlatform
    from shoal.testing.memory_store import MemoryStore
    from shoal.testing.planner_contract import PlannerContract
    from shoal.testing.platform_contract import PlatformContract
    from shoal.testing.store_contract import StoreContract
    from shoal.testing.store_model_contract import StoreModelContract
    from shoal.testing.table_costs import TableCosts

__all__ = [
    "AutoscalerContract",
    "EngineContract",
    "FunctionEngineContract",
    "InProcessPlatform",
    "MemoryStore",
    "PlannerContract",
    "PlatformContract",
    "StoreContract",
    "StoreModelContract",
    "TableCosts",
]

_WHERE = {
    "autoscaler_contract": ("AutoscalerContract",),
    "engine_contract": ("EngineContract",),
    "function_engine_contract": ("FunctionEngineContract",),
    "inprocess_platform": ("InProcessPlatform",),
    "memory_store": ("MemoryStore",),
    "planner_contract": ("PlannerContract",),
    "platform_contract": ("PlatformContract",),
    "store_contract": ("StoreContract",),
    "store_model_contract": ("StoreModelContract",),
    "table_costs": ("TableCosts",),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

if sys.modules.get("pytest") is not None:
    import pytest

    pytest.register_assert_rewrite(*(f"{__name__}.{each.name}" for each in iter_modules(__path__)))


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'shoal.testing' has no attribute {name!r}")
    found = getattr(import_module(f"shoal.testing.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found
