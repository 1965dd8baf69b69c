# SPDX-License-Identifier: Apache-2.0
"""Our module between processes, and a server that is killed under a program."""

import json
import os
import subprocess
import sys

import pytest

from support.programs import FreshProgram, Program
from support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.filterwarnings("ignore")

SERVER = """
import sys, reverb
fifo, limiter = reverb.selectors.Fifo, reverb.rate_limiters.MinSize
tables = [reverb.Table(name, fifo(), fifo(), 10_000, limiter(1)) for name in sys.argv[3:]]
checkpointer = reverb.checkpointers.DefaultCheckpointer(sys.argv[2])
server = reverb.Server(tables, port=int(sys.argv[1]) or None, checkpointer=checkpointer)
print(server.port, flush=True)
server.wait()
"""

# A rollout worker as programs of TransferQueue write it: it makes what is not listed yet.
WORKER = """
import sys, time, torch
import transfer_queue as tq
tq.init()
print(tq.__file__, flush=True)
keys = [f"prompt_{index}" for index in range(int(sys.argv[1]))]
while True:
    listed = tq.kv_list("train").get("train", {})
    missing = [key for key in keys if listed.get(key, {}).get("status") != "done"]
    for key in missing[:3]:
        number = int(key.rpartition("_")[2])
        tq.kv_put(key, "train", tag={"status": "running"})
        tokens = torch.full((number % 5 + 1,), number)
        tq.kv_put(key, "train", fields={"tokens": tokens}, tag={"status": "done"})
    time.sleep(0.01)
"""


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Starts a server again and again at one address; yields a function that does."""
    from reverb.adapters.transfer_queue import make_tables

    programs, ports = [], ["0"]
    names = [table.name for table in make_tables()]  # Without PyTorch a server starts at once.

    def serve():
        programs.append(Program(SERVER, ports[0], tmp_path / "checkpoints", *names))
        ports[0] = programs[-1].line()
        monkeypatch.setenv("REVERB_TQ_ADDRESS", f"localhost:{ports[0]}")
        return programs[-1]

    yield serve
    for program in programs:
        program.__exit__()


@pytest.fixture
def tq(served):
    """Our module as a client of a server in another process."""
    import reverb.adapters.transfer_queue as tq

    tq.close()
    server = served()
    tq.init()
    yield tq, server
    tq.close()


def test_a_loop_goes_on_when_its_server_is_killed(tq, served, path_of_ours, monkeypatch):
    tq, server = tq
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([path_of_ours, *sys.path]))
    num_keys = 40
    client = tq.get_client().reverb_client

    def done():
        tags = tq.kv_list("train").get("train", {})
        return {key for key, tag in tags.items() if tag.get("status") == "done"}

    with FreshProgram(WORKER, num_keys) as worker:
        assert "reverb" in worker.line()
        for part in (10, 25):
            wait_until(lambda part=part: len(done()) >= part, 30 * PATIENCE)
            saved = done()
            client.checkpoint()
            server.kill()
            server = served()
            assert done() >= saved
        wait_until(lambda: len(done()) == num_keys, 30 * PATIENCE)
        keys = sorted(done())
        assert worker.is_running, worker.errors
        batch = tq.kv_batch_get(keys, "train", select_fields=["tokens"])
        for key, tokens in zip(keys, batch["tokens"].unbind(), strict=True):
            number = int(key.rpartition("_")[2])
            assert tokens.tolist() == [number] * (number % 5 + 1)
        tq.kv_clear(keys, "train")
        assert tq.kv_list("train") == {"train": {}}


def test_what_one_process_put_another_sees_at_once(tq, path_of_ours):
    tq, _ = tq
    tq.kv_put("a", "train", tag={"i": 1})
    program = (
        "import json, transfer_queue as tq; tq.init(); print(json.dumps(tq.kv_list()));"
        "tq.kv_put('a', 'train', tag={'i': 2})"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([path_of_ours, *sys.path])}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert json.loads(result.stdout) == {"train": {"a": {"i": 1}}}
    assert tq.kv_list() == {"train": {"a": {"i": 2}}}


def test_different_fields_that_are_put_at_once_all_stay(tq):
    """Two processes never read and write the same entry, so neither loses the other's."""
    import concurrent.futures

    import torch

    tq, _ = tq
    keys = [f"k{index}" for index in range(20)]

    def put(name):
        for key in keys:
            tq.kv_put(key, "train", fields={name: torch.ones(1)}, tag={name: 1})

    names = ["a", "b", "c", "d"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(put, names))
    assert set(tq.kv_batch_get(keys, "train").keys()) == set(names)
    assert all(tag == dict.fromkeys(names, 1) for tag in tq.kv_list("train")["train"].values())


def test_the_address_of_the_configuration_is_used(tq, monkeypatch):
    tq, _ = tq
    tq.kv_put("a", "train", tag={"i": 1})
    address = os.environ["REVERB_TQ_ADDRESS"]
    tq.close()
    monkeypatch.delenv("REVERB_TQ_ADDRESS")
    tq.init({"backend": {"storage_backend": "Reverb", "Reverb": {"address": address}}})
    assert tq.kv_list() == {"train": {"a": {"i": 1}}}
