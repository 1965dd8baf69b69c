# SPDX-License-Identifier: Apache-2.0
"""Buffers and the tables of servers."""

import pickle
import threading

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import reverb
from reverb import testing
from reverb.adapters.torchrl import tables
from reverb.errors import DeadlineExceededError, InvalidArgumentError
from support.torchrl_steps import steps
from support.waiting import DEADLINE_S


def test_who_only_samples_learns_the_fields(made):
    with reverb.Server([*tables("a"), *tables("b", alpha=0.6)]) as server:
        address = f"localhost:{server.port}"
        made(address, table="b").extend(steps(0, 5))
        reader = made(reverb.Client(address), table="b", batch_size=4)
        assert reader.sampler.alpha == pytest.approx(0.6)
        sample = reader.sample()
        assert (sample["next", "reward"][:, 0] == -sample["number"]).all()
        reader.sampler.alpha = 0.9
        assert made(address, table="b", alpha=0.9).sampler.alpha == 0.9
        # The others follow, and so do their pickles.
        again = pickle.loads(pickle.dumps(made(address, table="b")))
        reader.sampler.alpha = 0.3
        later = pickle.loads(pickle.dumps(again))
        assert later.sampler.alpha == pytest.approx(0.3)
        for buffer in (again, later):
            buffer.close()


def test_a_signature_tells_the_fields_too(made):
    signature = {
        "number": reverb.specs.TensorSpec([None], np.int64),
        "next": {"reward": reverb.specs.TensorSpec([None, 1], np.float32)},
    }
    one = testing.table(
        "replay", sampler=reverb.selectors.Uniform(), max_size=100, signature=signature
    )
    with reverb.Server([one]) as server:
        address = f"localhost:{server.port}"
        data = {"number": torch.arange(3), "next": {"reward": torch.ones(3, 1)}}
        made(address).extend(TensorDict(data, [3]))
        sample = made(address).sample(2)
        assert (sample["next", "reward"] == 1).all()
        assert sample["number"].dtype == torch.int64
        assert sample["next", "reward"].shape == torch.Size([2, 1])


def plain_table(**options):
    options = {"sampler": reverb.selectors.Uniform(), "max_size": 100} | options
    return testing.table("replay", **options)


def test_a_table_that_says_nothing_of_its_fields(made):
    with reverb.Server([plain_table()]) as server:
        address = f"localhost:{server.port}"
        writer = made(address)
        writer.extend(steps(0, 5))
        assert writer.sample(2).batch_size == torch.Size([2])
        with pytest.raises(InvalidArgumentError, match=r"no table replay\.fields"):
            made(address).sample(2)
        # A pickle has what its buffer has learned.
        again = pickle.loads(pickle.dumps(writer))
        assert again.sample(2).batch_size == torch.Size([2])
        again.close()


@pytest.mark.parametrize("consume_after_n_samples", [None, 1])
def test_a_closed_rate_limiter_lets_sample_wait(made, consume_after_n_samples):
    limiter = reverb.rate_limiters.MinSize(5)
    consume = {"consume_after_n_samples": consume_after_n_samples}
    with reverb.Server(tables("replay", rate_limiter=limiter, **consume)) as server:
        address = f"localhost:{server.port}"
        buffer = made(address, batch_size=2, timeout_ms=50, **consume)
        buffer.extend(steps(0, 3))
        with pytest.raises(DeadlineExceededError, match="replay"):
            buffer.sample()
        patient = made(address, batch_size=2, **consume)
        found = []
        thread = threading.Thread(target=lambda: found.append(patient.sample()))
        thread.start()
        buffer.extend(steps(3, 2))
        thread.join(DEADLINE_S)
        # An item that leaves closes the limiter again.
        assert len(found[0]) == (2 if consume_after_n_samples is None else 1)


def test_wrong_tables(made):
    made_tables = [*tables("replay", alpha=0.6), *tables("queue", consume_after_n_samples=1)]
    with reverb.Server(made_tables) as server:
        address = f"localhost:{server.port}"
        for options, text in [
            ({"table": "other"}, r"has no table other; it has \['queue', 'queue.fields', 'rep"),
            ({"alpha": 0.7}, r"alpha=0.7 must be the exponent of table replay .* which is 0.6"),
            ({"table": "queue", "alpha": 0.7}, "alpha=0.7, but table queue .* leave alpha out"),
            (
                {"table": "queue", "beta": 0.7, "consume_after_n_samples": 1},
                "beta=0.7 is for tables that sample by priority",
            ),
            ({"consume_after_n_samples": 2}, "consume_after_n_samples=2 must be .* is None"),
            ({"table": "queue"}, "consume_after_n_samples=None must be .* which is 1"),
            ({"max_size": 5}, "max_size=5 is a setting of the table"),
        ]:
            with pytest.raises(InvalidArgumentError, match=text):
                made(address, **options)
