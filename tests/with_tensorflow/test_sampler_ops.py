# SPDX-License-Identifier: Apache-2.0
"""The ops of samplers, called with attributes that the datasets never pass."""

import re

import pytest
import tensorflow as tf

from reverb.tf_ops import ops


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"window_length": 2, "timesteps": True}, "single steps cannot be sampled with a window"),
        ({"window_length": -1}, "window_length must be from 0 to 65536, got -1"),
        ({"window_length": 1, "window_pad": 4}, "window_pad must be from 0 to 3, got 4"),
        ({"window_before": 1}, "window.length must be at least 1, got 0"),
        (
            {"window_length": 65_536, "window_before": 1},
            "window: before + length must be at most 65536, got 65537",
        ),
    ],
)
def test_the_op_checks_its_attributes(client, attributes, says):
    arguments = {"dtypes": [tf.int64], "shapes": [[2]], **attributes}
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(says)):
        ops.reverb_replay_sampler_create(client.server_address, "t", 0, **arguments)


@pytest.mark.parametrize("length", [0, 2])
def test_outputs_of_windows_are_those_of_the_sampler(client, length):
    handle = ops.reverb_replay_sampler_create(
        client.server_address, "t", 0, dtypes=[], shapes=[], window_length=length
    )
    of_window = [tf.int32, tf.int32, tf.bool]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Twindow_list must be"):
        ops.reverb_replay_sampler_next(
            handle, Toutput_list=[], Twindow_list=[] if length else of_window
        )
