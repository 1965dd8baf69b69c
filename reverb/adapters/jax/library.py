# SPDX-License-Identifier: Apache-2.0
"""The only module that imports JAX."""

from reverb import Ragged
from reverb.adapters.library import imported

__all__ = ["jax"]

jax = imported("jax", "jax", "JAX", "jax>=0.4.31")


def _register_ragged() -> None:
    """Lets columns of items of different lengths be arguments of compiled functions."""
    jax.tree_util.register_pytree_node(
        Ragged,
        lambda ragged: ((ragged.values, ragged.offsets), None),
        lambda _, parts: Ragged.of_parts(*parts),
    )


_register_ragged()
