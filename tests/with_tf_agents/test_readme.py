# SPDX-License-Identifier: Apache-2.0
"""The snippets of the README and of docs/ that need TF-Agents run as they stand."""


def test_snippets_for_tf_agents_run(run_snippets):
    assert run_snippets(" tf-agents") == ["docs/howto/tf-agents.md"]
