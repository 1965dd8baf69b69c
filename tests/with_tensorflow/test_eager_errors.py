# SPDX-License-Identifier: Apache-2.0
"""Errors of plain calls become those that the ops raise."""

import pytest
import tensorflow as tf

from reverb import errors
from reverb.tf_ops.eager_errors import as_tensorflow_errors

CLASSES = [
    kind for kind in errors.ReverbError.__subclasses__() if kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_has_an_error_of_tensorflow(kind):
    with pytest.raises(tf.errors.OpError, match="the text") as caught, as_tensorflow_errors():
        raise kind("the text")
    is_internal = isinstance(caught.value, tf.errors.InternalError)
    assert is_internal == (kind is errors.InternalError)
