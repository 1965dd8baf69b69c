# SPDX-License-Identifier: Apache-2.0
"""A checkpoint tells the time of its snapshot, and which shard of which group it is of."""

import datetime
import pathlib
import re
import threading
import time

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.cluster import Shard

# Clocks may be set while a test runs, by little.
TOLERANCE_S = 0.005


@pytest.fixture
def busy_save(serve, root):
    """A checkpoint during whose save items were inserted, and the times of all items by key."""
    client = serve(root, testing.table(max_size=10**6))
    saved = None
    # More of it until the save takes long enough.
    for _ in range(6):
        # Bytes that cannot be compressed take their time.
        data = np.random.default_rng(1).integers(0, 256, [3000, 8192], np.uint8)
        client.insert_batch([data], {"table": np.ones(len(data))})
        saved = _save_while_inserting(client)
        if _time_of_inserts(*saved) > 2 * TOLERANCE_S:
            break
    return client, *saved


def _time_of_inserts(checkpoint, times):
    """Between the first and the last item that were inserted during the save."""
    saved = {int(it.info.key) for it in checkpoint.scan("table")}
    later = [at for key, at in times.items() if key not in saved]
    return max(later) - min(later) if later else 0.0


def _save_while_inserting(client):
    has_saved = threading.Event()

    def insert():
        while not has_saved.is_set():
            client.insert([np.zeros(1, np.uint8)], {"table": 1.0})
            time.sleep(0.0005)

    thread = threading.Thread(target=insert)
    thread.start()
    path = client.checkpoint()
    has_saved.set()
    thread.join()
    times = {int(it.info.key): at for at, it in client.scan("table", with_inserted_at=True)}
    return reverb.checkpointers.read(path), times


def test_the_time_is_that_of_the_snapshot_and_not_of_the_end(busy_save):
    _, checkpoint, times = busy_save
    saved = {int(it.info.key) for it in checkpoint.scan("table")}
    later = [at for key, at in times.items() if key not in saved]
    assert later, "items were inserted while it was written"
    assert max(times[key] for key in saved) <= checkpoint.taken_at + TOLERANCE_S
    assert checkpoint.taken_at <= min(later) + TOLERANCE_S
    assert max(later) - min(later) > 2 * TOLERANCE_S, "the save was too short to tell"


def test_name_and_status_tell_the_same_time(busy_save):
    client, checkpoint, _ = busy_save
    status = client.checkpoint_status()
    assert status.latest_saved_at == pytest.approx(checkpoint.taken_at, abs=1e-5)
    name = pathlib.Path(checkpoint.path).name
    match = re.fullmatch(r"(.*)(\.\d{9})(\+\d\d:\d\d|-\d\d:\d\d)", name)
    seconds = datetime.datetime.fromisoformat(match[1] + match[3]).timestamp()
    assert seconds + float(match[2]) == pytest.approx(checkpoint.taken_at, abs=1e-5)


def test_a_shard_tells_which_one_it_is(root):
    for group in ("replay", "", "a b=c/\N{LATIN SMALL LETTER E WITH ACUTE}"):
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
        shard = Shard(1, 3, group)
        with reverb.Server([testing.table()], checkpointer=checkpointer, shard=shard) as server:
            path = server.localhost_client().checkpoint()
        assert reverb.checkpointers.read(path).place == (group, 1, 3)


def test_a_server_of_no_group_tells_none(serve, root):
    checkpoint = reverb.checkpointers.read(serve(root).checkpoint())
    assert checkpoint.place is None


def test_a_checkpoint_of_dm_reverb_tells_neither(sample):
    checkpoint = reverb.checkpointers.read(sample)
    assert (checkpoint.taken_at, checkpoint.place) == (None, None)
