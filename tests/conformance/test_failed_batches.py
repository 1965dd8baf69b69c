# SPDX-License-Identifier: Apache-2.0
"""A batch that cannot be stacked, from servers that know of it and from those that do not."""

import numpy as np
import pytest

import reverb
from support.compared_packages import PACKAGES


@pytest.mark.parametrize("server", PACKAGES)
def test_no_item_is_lost(server, serve):
    address = serve(server, {"max_times_sampled": 1, "limiter": ["Queue", 9], "max_size": 9})
    client = reverb.Client(address)
    for length in (1, 2, 3):
        client.insert([np.full(length, length)], {"table": 1.0})
    with pytest.raises(reverb.errors.InvalidArgumentError) as caught:
        client.sample_batch("table", 3)
    kept = [sample.data[0].shape[1] for sample in caught.value.samples]
    assert kept == ([] if server == "ours" else [1, 2, 3])
    left = client.server_info()["table"].current_size
    rest = [item[0].data[0].size for item in client.sample("table", left)] if left else []
    assert sorted(kept + rest) == [1, 2, 3]
