# SPDX-License-Identifier: Apache-2.0
"""The only module that imports JAX."""

import importlib
from typing import Any

from reverb import Ragged

__all__ = ["jax"]


def _import_jax() -> Any:
    try:
        return importlib.import_module("jax")
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
    raise ModuleNotFoundError(
        "reverb.adapters.jax needs JAX, which is not installed: pip install 'jax>=0.4.31'",
        name="jax",
    )


# Type checkers would confuse this package with JAX.
jax: Any = _import_jax()


def _register_ragged() -> None:
    """Lets columns of items of different lengths be arguments of compiled functions."""
    jax.tree_util.register_pytree_node(
        Ragged,
        lambda ragged: ((ragged.values, ragged.offsets), None),
        lambda _, parts: Ragged.of_parts(*parts),
    )


_register_ragged()
