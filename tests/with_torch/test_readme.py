# SPDX-License-Identifier: Apache-2.0
"""The snippets about PyTorch run as they stand."""


def test_snippets_for_torch_run(run_snippets):
    assert run_snippets(" torch") == ["docs/howto/pytorch.md"]
