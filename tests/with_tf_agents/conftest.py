# SPDX-License-Identifier: Apache-2.0
"""TF-Agents warns about its own dependencies while it is imported; that is no fault of ours."""

import importlib.util
import os
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

if importlib.util.find_spec("tf_agents") is not None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tf_agents.agents
        import tf_agents.environments
        import tf_agents.replay_buffers  # noqa: F401
