# SPDX-License-Identifier: Apache-2.0
"""Prints the names that dm-reverb has, a line each: `module`, `module.Name`, `module.Name.member`.

Left out is what its files only import for their own use: other libraries, and modules.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Iterator
from typing import Any

import reverb


def public(names: list[str]) -> list[str]:
    """Names without the two underscores that Python itself uses."""
    return [name for name in names if not name.startswith("__")]


def is_its_own(name: str, value: Any) -> bool:
    """Whether a module defines a name, so that programs may look for it there."""
    if isinstance(value, types.ModuleType) or hasattr(typing, name):
        return False
    if isinstance(value, (int, float, str, functools.partial)):
        return True
    return getattr(value, "__module__", "typing").split(".")[0] in ("reverb", "typing")


def members(value: type) -> list[str]:
    """The public attributes of a class; for a message, its fields and nested messages."""
    descriptor = getattr(value, "DESCRIPTOR", None)
    if descriptor is not None:
        return [*descriptor.fields_by_name, *descriptor.nested_types_by_name]
    return [name for name in public(dir(value)) if not name.startswith("_")]


def names() -> Iterator[str]:
    """All names, in order."""
    walked = pkgutil.walk_packages(reverb.__path__, "reverb.", onerror=lambda name: None)
    for module_name in ["reverb", *sorted(module.name for module in walked)]:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue  # A library of C++ beside the modules.
        yield module_name
        for name in public(dir(module)):
            value = getattr(module, name)
            if is_its_own(name, value):
                yield f"{module_name}.{name}"
                if inspect.isclass(value):
                    yield from (f"{module_name}.{name}.{member}" for member in members(value))


if __name__ == "__main__":
    print("\n".join(names()))
