# SPDX-License-Identifier: Apache-2.0
"""Tests beside TF-Agents; without it they are skipped, and say so."""

import importlib.util
import os
import warnings

from support.skipped import skip_without

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

pytest_pycollect_makemodule = skip_without("tf_agents", "TF-Agents", "test-integrations")

if importlib.util.find_spec("tf_agents") is not None:
    # It warns about its own dependencies; that is no fault of ours.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tf_agents.agents
        import tf_agents.environments
        import tf_agents.replay_buffers  # noqa: F401
