# SPDX-License-Identifier: Apache-2.0
"""Columns of items and of a table's signature are matched by their names."""

import collections

import numpy as np
import pytest

from reverb import errors
from reverb.adapters.gymnasium import EnvRecorder, Transitions, signature
from support.coded_env import CodedEnv


def as_named_tuple(columns, names):
    return collections.namedtuple("Step", names)(*(columns[name] for name in names))


@pytest.mark.parametrize("as_signature", [dict, as_named_tuple], ids=["dict", "named tuple"])
def test_columns_are_put_into_the_order_of_the_signature(signed, as_signature):
    # Two columns of one dtype and shape each: by their places they would be swapped.
    env = CodedEnv(0)
    columns = signature(env, Transitions())
    names = sorted(columns, reverse=True)
    made = dict(columns) if as_signature is dict else as_named_tuple(columns, names)
    with signed(made) as client:
        recorder = EnvRecorder(env, client, "replay", Transitions())
        observation, _ = recorder.reset(seed=1)
        following, reward, *_ = recorder.step(1)
        recorder.close()
        (sample,) = client.scan("replay", unpack_as_table_signature=True)
        data = sample.data if as_signature is dict else sample.data._asdict()
    np.testing.assert_array_equal(data["observation"], observation)
    np.testing.assert_array_equal(data["next_observation"], following)
    assert (data["reward"], data["discount"]) == (np.float32(reward), np.float32(0.99))


@pytest.mark.parametrize("change", ["renamed", "missing", "more"])
def test_columns_of_other_names_are_an_error(signed, change):
    columns = signature(CodedEnv(0), Transitions())
    if change == "more":
        columns["score"] = columns["reward"]
    else:
        renamed = columns.pop("next_observation")
        columns |= {"obs_next": renamed} if change == "renamed" else {}
    with signed(columns) as client:
        recorder = EnvRecorder(CodedEnv(0), client, "replay", Transitions())
        recorder.reset(seed=1)
        with pytest.raises(errors.SignatureMismatchError) as raised:
            recorder.step(1)
        text = str(raised.value)
        if change == "renamed":
            assert f"the table signature has [{', '.join(sorted(columns))}]" in text
            assert "It has the columns [action, discount, next_observation, observation" in text
        else:
            assert f"has 7 columns but the table signature has {len(columns)}" in text
        recorder.close()
        assert client.server_info()["replay"].current_size == 0


def test_a_signature_without_names_is_matched_by_places(signed):
    env = CodedEnv(0)
    columns = signature(env, Transitions())
    with signed([columns[name] for name in sorted(columns)]) as client:
        recorder = EnvRecorder(env, client, "replay", Transitions())
        recorder.reset(seed=1)
        recorder.step(1)
        recorder.close()
        assert client.server_info()["replay"].current_size == 1
