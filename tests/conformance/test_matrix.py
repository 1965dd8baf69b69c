# SPDX-License-Identifier: Apache-2.0
"""Every writer of either package, through either server, to every reader of either package."""

import pytest

from conformance.peer_programs.arrays import encode
from conformance.peer_programs.scenarios import SCENARIOS

# Only the peer reads through TensorFlow here; this package's datasets have their own tests.
_READERS = [
    ("ours", "sample"),
    ("ours", "sample_timesteps"),
    ("peer", "sample"),
    ("peer", "sample_timesteps"),
    ("peer", "trajectory_dataset"),
    ("peer", "timestep_dataset"),
]
_WRITERS = ["ours", "peer"]
_SERVERS = ["ours", "peer"]

_ONE_READER_IS_ENOUGH = {"over_40_mib", "legacy_over_40_mib"}


def _combinations():
    made = []
    for scenario in SCENARIOS:
        for writer in _WRITERS:
            for server in _SERVERS:
                for reader, how in _READERS:
                    if _makes_sense(scenario, writer, reader, how):
                        needs_peer = "peer" in (writer, server, reader)
                        marks = [pytest.mark.conformance] if needs_peer else []
                        values = (scenario, writer, server, reader, how)
                        made.append(pytest.param(*values, marks=marks, id="-".join(values)))
    return made


def _makes_sense(scenario, writer, reader, how):
    if scenario == "strided_in_one_chunk" and writer == "peer":
        # The peer's writer stores a contiguous run instead (D-04 of its defects).
        return False
    if scenario in _ONE_READER_IS_ENOUGH:
        return how == "sample"
    if how == "sample_timesteps":
        return SCENARIOS[scenario].as_timesteps
    if how == "timestep_dataset":
        return SCENARIOS[scenario].as_timesteps and SCENARIOS[scenario].cut_alike
    return True


@pytest.mark.parametrize(("scenario", "writer", "server", "reader", "how"), _combinations())
def test_items_come_back_as_written(scenario, writer, server, reader, how, serve, worker_of):
    address = serve(server, {"max_times_sampled": 1})
    worker_of(writer, "client").call("write", address=address, scenario=scenario)
    expected = [[encode(column) for column in item] for item in SCENARIOS[scenario].items()]
    client = worker_of(reader, "client")
    samples = client.call("read", address=address, count=len(expected), how=how, scenario=scenario)
    assert [sample["columns"] for sample in samples] == expected
    assert [sample["info"]["times_sampled"] for sample in samples] == [1] * len(expected)
    assert [sample["info"]["probability"] for sample in samples] == [1.0] * len(expected)
    assert len({sample["info"]["key"] for sample in samples}) == len(expected)
