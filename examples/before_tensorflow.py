# SPDX-License-Identifier: Apache-2.0
"""Imported before TensorFlow: settings that are read at its import, and less noise."""

import contextlib
import importlib.util
import io
import os
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# Small networks gain nothing from oneDNN, which prints a message.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
# TF-Agents 0.19 and Acme were written for Keras 2; from TensorFlow 2.16 on that is `tf_keras`.
if importlib.util.find_spec("tf_keras"):
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

# Deprecation warnings inside the libraries, which their users cannot avoid.
for category in (DeprecationWarning, FutureWarning, SyntaxWarning, UserWarning):
    warnings.filterwarnings("ignore", category=category)
# They import gym, which prints that it is no longer maintained.
with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(ImportError):
    import gym  # noqa: F401
