# SPDX-License-Identifier: Apache-2.0
"""The snippets about Stable-Baselines3 run as they stand."""


def test_snippets_for_sb3_run(run_snippets):
    assert run_snippets(" sb3") == ["docs/howto/sb3.md"]
