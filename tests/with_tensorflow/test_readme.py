# SPDX-License-Identifier: Apache-2.0
"""The snippets of the README and of docs/ that need TensorFlow run as they stand."""


def test_snippets_for_tensorflow_run(run_snippets):
    assert run_snippets(" tensorflow") == ["docs/howto/tensorflow.md"]
