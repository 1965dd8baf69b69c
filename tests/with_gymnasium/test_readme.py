# SPDX-License-Identifier: Apache-2.0
"""The snippets about Gymnasium run as they stand."""


def test_snippets_for_gymnasium_run(run_snippets):
    assert run_snippets(" gymnasium") == ["docs/howto/gymnasium.md"]
