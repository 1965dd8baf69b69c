# SPDX-License-Identifier: Apache-2.0
"""The snippets about TorchRL run as they stand."""


def test_snippets_for_torchrl_run(run_snippets):
    assert run_snippets(" torchrl") == ["docs/howto/torchrl.md"]
