# SPDX-License-Identifier: Apache-2.0
"""Imported before Acme: a `launchpad` to import, settings for TensorFlow, and less noise."""

import contextlib
import importlib.util
import io
import pathlib
import sys

import before_tensorflow  # noqa: F401

# Acme imports launchpad for its signal handlers. Launchpad has wheels for Python 3.10 at most and
# requires its own dm-reverb, so if it is missing, the stub of the tests is used.
if importlib.util.find_spec("launchpad") is None:
    root = pathlib.Path(__file__).resolve().parents[1]
    sys.path.append(str(root / "tests" / "integrations" / "stubs"))

# Imports of Acme enable warnings again, and then warn.
with contextlib.redirect_stderr(io.StringIO()):
    import acme.agents.tf.dqn  # noqa: F401
