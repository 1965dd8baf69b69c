# SPDX-License-Identifier: Apache-2.0
"""Warns of every public name that no page of the reference documents, with a docstring.

autodoc leaves out members without a docstring, so those are found too.
"""

import importlib
import inspect
import types
from collections.abc import Iterator

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import reverb

# The modules that programs import, by the names that they use.
MODULES = [
    "reverb",
    "reverb.selectors",
    "reverb.rate_limiters",
    "reverb.specs",
    "reverb.structured",
    "reverb.checkpointers",
    "reverb.errors",
    "reverb.logging",
    "reverb.testing",
    "reverb.aio",
    "reverb.datasets",
    "reverb.adapters.queue",
    "reverb.adapters.tf_agents.replay_buffer_utils",
    "reverb.adapters.tf_agents.reverb_replay_buffer",
    "reverb.adapters.tf_agents.reverb_utils",
    "reverb.adapters.acme.adders",
    "reverb.adapters.acme.datasets",
    "reverb.adapters.acme.replay",
    "reverb.adapters.acme.reverb_utils",
    "reverb.adapters.acme.specs",
    "reverb.adapters.acme.tables",
    "reverb.adapters.acme.types",
]
# Kept only for programs that import it.
EXCEPT = {"reverb.__version__", "reverb.selectors.from_options"}

_logger = logging.getLogger(__name__)


def public_names() -> Iterator[str]:
    """Every public class and function, and the public members that a class defines itself."""
    for module_name in MODULES:
        module = _resolve(module_name)
        names = list(module.__all__)
        if module_name == "reverb":
            # Loaded when they are first touched, and so not in `__all__`.
            names += reverb._TENSORFLOW_NAMES
        for name in names:
            value = getattr(module, name)
            if isinstance(value, types.ModuleType):
                continue
            yield f"{module_name}.{name}"
            if inspect.isclass(value) and value.__module__.startswith("reverb"):
                for member in vars(value):
                    if not member.startswith("_") and _is_documentable(value, member):
                        yield f"{module_name}.{name}.{member}"


def _is_documentable(owner: type, member: str) -> bool:
    if member in inspect.get_annotations(owner):
        return False  # A field; the docstring of the class lists it.
    value = inspect.getattr_static(owner, member)
    if isinstance(value, classmethod | staticmethod | property):
        return True
    return inspect.isfunction(value)


def _resolve(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(parent), attribute)


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Compares with what the pages describe."""
    described = set(env.get_domain("py").objects)  # pyright: ignore[reportAttributeAccessIssue]
    for name in public_names():
        if name not in described and name not in EXCEPT:
            _logger.warning("no page of the reference documents %s", name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Checks when all pages have been read."""
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
