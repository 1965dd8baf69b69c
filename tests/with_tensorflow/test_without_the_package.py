# SPDX-License-Identifier: Apache-2.0
"""Processes that have TensorFlow and the library of the ops, but did not import the package."""

import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

import reverb
from reverb.tf_ops import ops

# A process that imports TensorFlow takes long on a busy machine.
pytestmark = pytest.mark.timeout(180)

LOAD_THE_LIBRARY = """
import sys
import tensorflow as tf
print([name for name in dir(tf.load_op_library(sys.argv[1])) if "replay" in name])
"""

LOAD_A_MODEL = """
import sys
import tensorflow as tf
tf.saved_model.load(sys.argv[1])
"""


def run(source, argument):
    command = [sys.executable, "-c", source, str(argument)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_library_alone_says_what_is_missing():
    library = pathlib.Path(reverb.__file__).parent / "tf_ops" / "_reverb_ops.so"
    loaded = run(LOAD_THE_LIBRARY, library)
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.strip() == "[]"
    assert "import reverb first" in loaded.stderr


def test_a_saved_model_names_the_op_that_is_missing(tmp_path):
    module = tf.Module()

    @tf.function(input_signature=[])
    def close():
        return ops.reverb_replay_sampler_close(tf.constant(0, tf.int64))

    module.close = close
    assert not module.close()
    tf.saved_model.save(module, str(tmp_path))
    loaded = run(LOAD_A_MODEL, tmp_path)
    assert loaded.returncode != 0
    assert "ReverbReplaySamplerClose" in loaded.stderr
