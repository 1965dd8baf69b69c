# SPDX-License-Identifier: Apache-2.0
"""The snippets about TransferQueue's names run as they stand."""

import pytest


@pytest.mark.filterwarnings("ignore")
def test_snippets_for_transferqueue_run(run_snippets):
    assert run_snippets(" transferqueue") == ["docs/howto/verl.md"]
