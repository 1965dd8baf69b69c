# SPDX-License-Identifier: Apache-2.0
"""Several processes share one table: collectors, learners, and those that are killed."""

import multiprocessing
import os
import signal
import time
import warnings

import pytest
import torch

import reverb
from reverb.adapters.torchrl import ReverbReplayBuffer, tables
from support.waiting import DEADLINE_S

with warnings.catch_warnings():
    # TorchRL's collectors use what TorchRL itself has deprecated.
    warnings.simplefilter("ignore")
    from torchrl.collectors import Collector, MultiSyncCollector
    from torchrl.envs import EnvCreator

    from support.torchrl_workers import learn_for_ever, make_env, numbered, write

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
torch.set_num_threads(1)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("has_own_server", [True, False])
def test_a_buffer_goes_into_other_processes(method, has_own_server):
    context = multiprocessing.get_context(method)
    server = None
    if has_own_server:
        buffer = ReverbReplayBuffer(alpha=1.0)
    else:
        server = reverb.Server(tables("replay", alpha=1.0))
        buffer = ReverbReplayBuffer(f"localhost:{server.port}")
    buffer.extend(numbered(0, 50))
    writers = [context.Process(target=write, args=(buffer, 100 * i)) for i in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(2 * DEADLINE_S)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert (len(buffer), buffer.write_count) == (152, 152)
    found = {it["number"].item() for it in buffer.storage}
    assert found == {*range(50), *range(100, 151), *range(200, 251)}
    priorities = [it.info.priority for it in buffer._access.client.scan("replay")]
    assert sum(it == pytest.approx(7.0) for it in priorities) >= 2
    buffer.close()
    if server is not None:
        server.stop()


def test_a_learner_that_is_killed_leaves_the_table_as_it_is():
    context = multiprocessing.get_context("spawn")
    buffer = ReverbReplayBuffer(alpha=0.6)
    buffer.extend(numbered(0, 100))
    here, there = context.Pipe()
    learner = context.Process(target=learn_for_ever, args=(buffer, there))
    learner.start()
    assert here.poll(60)
    os.kill(learner.pid, signal.SIGKILL)
    learner.join(DEADLINE_S)
    buffer.extend(numbered(100, 100))
    assert len(buffer) == 200
    assert set(buffer.sample(64)["number"].tolist()) <= {*range(200)}
    buffer.close()


@pytest.mark.parametrize("sequence_length", [None, 4])
def test_a_collector_writes_into_the_buffer(sequence_length):
    buffer = ReverbReplayBuffer(sequence_length=sequence_length, batch_size=32)
    collector = Collector(make_env, frames_per_batch=50, total_frames=200, replay_buffer=buffer)
    for data in collector:
        assert data is None
    collector.shutdown()
    if sequence_length is None:
        assert (len(buffer), buffer.write_count) == (200, 200)
    sample = buffer.sample()
    assert sample.batch_size == torch.Size([32])
    assert sample["next", "observation"].shape == torch.Size([32, 4])
    if sequence_length:
        inside = sample.reshape(-1, sequence_length)
        assert torch.equal(inside["next", "observation"][:, :-1], inside["observation"][:, 1:])
        counts = inside["step_count"][..., 0]
        assert (counts - counts[:, :1] == torch.arange(sequence_length)).all()
    buffer.close()


def test_a_collector_writes_whole_episodes():
    buffer = ReverbReplayBuffer(window=reverb.Window(4, before=1, pad="left"), batch_size=32)
    collector = Collector(make_env, frames_per_batch=50, total_frames=200, replay_buffer=buffer)
    for data in collector:
        assert data is None
    collector.shutdown()
    for item in buffer.scan():
        assert item["step_count"][:, 0].tolist() == list(range(len(item)))
        assert item["next", "done"][:, 0].tolist() == [False] * (len(item) - 1) + [True]
        assert len(set(item["collector", "traj_ids"].tolist())) == 1
    sample = buffer.sample()
    places = sample["reverb", "window_start"] + torch.arange(5)
    assert torch.equal(sample["step_count"][..., 0], places.clamp(min=0))
    following = sample["next", "observation"]
    assert torch.equal(following[:, 1:-1], sample["observation"][:, 2:])
    buffer.close()


@pytest.mark.parametrize("has_own_server", [True, False])
def test_collectors_in_processes_share_the_table(has_own_server):
    server = None if has_own_server else reverb.Server(tables("replay", alpha=0.6))
    address = None if server is None else f"localhost:{server.port}"
    alpha = 0.6 if server is None else None
    buffer = ReverbReplayBuffer(address, batch_size=32, alpha=alpha, shared=True)
    collector = MultiSyncCollector(
        [EnvCreator(make_env), EnvCreator(make_env)],
        frames_per_batch=100,
        total_frames=400,
        replay_buffer=buffer,
    )
    learned = 0
    for _ in collector:
        sample = buffer.sample()
        sample["td_error"] = torch.rand(32)
        buffer.update_tensordict_priority(sample)
        learned += 1
    collector.shutdown()
    assert learned == 4
    assert (len(buffer), buffer.write_count) == (400, 400)
    trajectories = {it["collector", "traj_ids"].item() for it in buffer.storage}
    assert len(trajectories) > 2
    buffer.close()
    if server is not None:
        server.stop()


def test_a_collector_that_runs_beside_the_learner():
    buffer = ReverbReplayBuffer(batch_size=16)
    collector = Collector(make_env, frames_per_batch=20, total_frames=-1, replay_buffer=buffer)
    collector.start()
    deadline = time.monotonic() + 60
    while buffer.write_count < 100:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert buffer.sample().batch_size == torch.Size([16])
    collector.async_shutdown()
    buffer.close()
