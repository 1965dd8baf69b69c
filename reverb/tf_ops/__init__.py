# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/tensorflow.md.
"""The TensorFlow part: datasets, and a client whose calls are TensorFlow ops.

Importing this package imports TensorFlow and registers the ops, once per process. Programs that
load a saved model with such a dataset, and workers of a `tf.data` service, only need
`import reverb.tf_ops`. Other programs use the public names: `reverb.TrajectoryDataset`, ...

The ops are compiled into the native module. `_reverb_ops.so`, a few kilobytes, registers them with
the installed TensorFlow. Neither is built for a particular version of TensorFlow.
"""

import os
import pathlib
from typing import Any

from reverb.core import native

try:
    import tensorflow as tf  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        "The TensorFlow part of reverb needs TensorFlow 2.12 or later, which cannot be imported. "
        f"Install it with `pip install 'tensorflow>=2.14'`. The cause was: {error}"
    ) from error

__all__ = ["MINIMAL_TENSORFLOW", "ops"]

# The oldest TensorFlow whose C API has everything that the ops use.
MINIMAL_TENSORFLOW = (2, 12)

_SHIM = pathlib.Path(__file__).parent / "_reverb_ops.so"

# The shim reads the address of the function that registers the ops from this variable.
_REGISTER_VARIABLE = "REVERB_REPLAY_REGISTER"


def _check_version(version: str) -> None:
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < MINIMAL_TENSORFLOW:
        raise ImportError(
            f"The TensorFlow part of reverb needs TensorFlow {MINIMAL_TENSORFLOW[0]}."
            f"{MINIMAL_TENSORFLOW[1]} or later, found {version}. "
            "Update it with `pip install --upgrade tensorflow`."
        )


def _load(shim: pathlib.Path) -> Any:
    """Registers the ops with TensorFlow; returns the module of their Python wrappers."""
    address = getattr(native, "tensorflow_register_address", None)
    if address is None or not shim.exists():
        missing = shim.name if address is not None else "the ops in reverb.core._native"
        raise ImportError(
            f"This installation of reverb lacks its TensorFlow part: {missing} is missing in "
            f"{shim.parents[1]}. Reinstall the package: "
            "`make build` or `pip install --force-reinstall .` in a clone, "
            "`pip install --force-reinstall reverb-replay` for a release."
        )
    os.environ[_REGISTER_VARIABLE] = format(address(), "x")
    try:
        # TensorFlow makes wrappers only of ops that are registered while it loads a library. The
        # native module is already loaded, hence the shim.
        loaded = tf.load_op_library(str(shim))
    except tf.errors.OpError as error:
        raise ImportError(
            f"TensorFlow {tf.__version__} does not accept the ops of reverb: {error.message}"
        ) from error
    finally:
        os.environ.pop(_REGISTER_VARIABLE, None)
    if not hasattr(loaded, "reverb_replay_sampler_create"):
        raise ImportError(
            f"TensorFlow {tf.__version__} loaded {shim} and found no ops in it; was it loaded "
            "before under another path?"
        )
    return loaded


_check_version(tf.__version__)

# Wrappers of the ops, with names in lower case: `ops.reverb_replay_sample`, ...
ops = _load(_SHIM)
