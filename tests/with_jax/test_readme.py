# SPDX-License-Identifier: Apache-2.0
"""The snippets about JAX run as they stand."""


def test_snippets_for_jax_run(run_snippets):
    assert run_snippets(" jax") == ["docs/howto/jax.md"]
