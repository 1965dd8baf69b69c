# SPDX-License-Identifier: Apache-2.0
"""Imported before Acme: a `launchpad` to import, settings for TensorFlow, and less noise."""

import contextlib
import importlib.util
import io
import pathlib
import sys

import before_tensorflow  # noqa: F401

# Acme imports launchpad for its signal handlers. Launchpad has wheels for Python 3.10 at most and
# asks for a dm-reverb of its own, so where it is missing the stand-in of the tests takes its place.
if importlib.util.find_spec("launchpad") is None:
    root = pathlib.Path(__file__).resolve().parents[1]
    sys.path.append(str(root / "tests" / "integrations" / "stubs"))

# What Acme imports switches warnings on again, and then warns.
with contextlib.redirect_stderr(io.StringIO()):
    import acme.agents.tf.dqn  # noqa: F401
