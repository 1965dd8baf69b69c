# SPDX-License-Identifier: Apache-2.0
"""`window=`: whole episodes as items, and random windows of their steps as samples."""

import pickle

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import reverb
from reverb.adapters.torchrl import ReverbReplayBuffer, tables
from reverb.errors import DeadlineExceededError, InvalidArgumentError
from support.torchrl_steps import episodes

LENGTHS = (3, 8, 20, 12)
PADS = ("none", "left", "right", "both")
FIELDS = ("window_start", "num_windows", "window_mask")


def check(sample, window, lengths=LENGTHS):
    """Compares a sample `[B, T]` of `episodes(lengths)` with slices; returns its episodes."""
    size = sample.batch_size[0]
    assert sample.batch_size == torch.Size([size, window.num_steps])
    info = sample["reverb"]
    start, mask = info["window_start"], info["window_mask"]
    assert info.batch_size == sample.batch_size
    assert [info[name].dtype for name in FIELDS] == [torch.int32, torch.int32, torch.bool]
    assert (start == start[:, :1]).all()
    assert (sample["episode"] == sample["episode"][:, :1]).all()
    number = sample["episode"][:, 0]
    length = torch.tensor(lengths)[number]
    places = start[:, :1] + torch.arange(window.num_steps)
    assert torch.equal(mask, (places >= 0) & (places < length[:, None]))
    step = places.clamp(min=0).minimum(length[:, None] - 1)
    assert torch.equal(sample["step"], step)
    first = 0 if window.pads_left else window.before
    last = length - (1 if window.pads_right else window.length)
    anchor = start[:, 0] + window.before
    assert ((anchor >= first) & (anchor <= last)).all()
    assert torch.equal(info["num_windows"][:, 0].long(), last - first + 1)
    # The last step of each window is marked, as `SliceSampler` does, and padding is not.
    truncated = sample["next", "truncated"][..., 0]
    assert torch.equal(truncated, mask & (places == places.where(mask, -1).amax(1, True)))
    assert torch.equal(sample["next", "done"][..., 0], truncated | (step == length[:, None] - 1))
    return number


@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize(("length", "before"), [(1, 0), (4, 2), (12, 3)])
def test_samples_are_slices_of_episodes(made, length, before, pad):
    window = reverb.Window(length, before=before, pad=pad)
    buffer = made(window=window, batch_size=200)
    assert (buffer.extend(episodes(LENGTHS)) == -1).all()
    assert len(buffer) == 4
    found = set(check(buffer.sample(), window).tolist())
    assert found == {
        at
        for at, steps in enumerate(LENGTHS)
        if steps >= (1 if pad == "both" else length if pad == "left" else before + 1)
        and (pad != "none" or steps >= before + length)
    }


def test_episodes_continue_with_the_next_call(made):
    window = reverb.Window(3)
    buffer = made(window=window, batch_size=50)
    data = episodes(LENGTHS)
    counts = []
    for first in range(0, len(data), 5):
        buffer.extend(data[first : first + 5])
        counts.append(len(buffer))
    assert counts == [1, 1, 2, 2, 2, 2, 3, 3, 4]
    check(buffer.sample(), window)
    whole = [item["step"].tolist() for item in buffer.scan()]
    assert whole == [list(range(length)) for length in LENGTHS]
    with pytest.raises(InvalidArgumentError, match=r"different numbers of steps.*buffer\.scan"):
        buffer[:]
    assert buffer[1:2].batch_size == torch.Size([1, 8])


def trajectories(ids, done=None):
    """Steps `[N, T]` of environments, with the number of the trajectory of each."""
    ids = torch.tensor(ids)
    size = list(ids.shape)
    step = torch.arange(size[1]).expand(size).clone()
    data = {"step": step, "collector": TensorDict({"traj_ids": ids}, size)}
    if done is not None:
        data["next"] = TensorDict({"done": torch.tensor(done)[..., None]}, size)
    return TensorDict(data, size)


def test_environments_whose_trajectories_change(made):
    buffer = made(window=reverb.Window(1), batch_size=1)
    buffer.extend(trajectories([[0, 0, 0, 0], [1, 1, 2, 2]]))
    buffer.extend(trajectories([[0, 3, 3, 3], [4, 4, 4, 4]]))
    found = sorted(item["collector", "traj_ids"].tolist() for item in buffer.scan())
    assert found == [[0] * 5, [1] * 2, [2] * 2]


def test_the_last_trajectory_ends_with_its_flag(made):
    """No other one begins after it."""
    ids, done = [[0, 0, 1, 1]], [[False, True, False, True]]
    buffer = made(window=reverb.Window(1), batch_size=1)
    buffer.extend(trajectories(ids, done))
    found = sorted(item["collector", "traj_ids"].tolist() for item in buffer.scan())
    assert found == [[0, 0], [1, 1]]
    # A key that the program names decides alone.
    buffer = made(window=reverb.Window(1), batch_size=1, traj_key=("collector", "traj_ids"))
    buffer.extend(trajectories(ids, done))
    assert len(buffer) == 1


def test_one_step_at_a_time(made):
    buffer = made(window=reverb.Window(2), batch_size=4)
    for step in episodes([4, 3]):
        assert buffer.add(step) == -1
    assert len(buffer) == 2
    check(buffer.sample(), reverb.Window(2), (4, 3))


def test_priorities_are_those_of_episodes(made):
    window = reverb.Window(2)
    buffer = made(window=window, batch_size=4_000, alpha=1.0, beta=1.0, eps=0.0, reduction="max")
    data = episodes(LENGTHS)
    data["td_error"] = (data["episode"] + 1.0) * (data["step"] == 1)
    buffer.extend(data)
    sample = buffer.sample()
    number = check(sample, window)
    share = torch.bincount(number) / len(number)
    np.testing.assert_allclose(share, np.arange(1, 5) / 10, atol=0.05)
    # The weights of windows, normalized by the batch: the inverse of p / n.
    each = (torch.tensor(LENGTHS) - 1.0) / torch.arange(1, 5)
    weights = sample["priority_weight"]
    assert weights.shape == (4_000, 2)
    np.testing.assert_allclose(weights[:, 0], each[number] / each.max(), rtol=1e-5)
    sample["td_error"] = torch.where(number[:, None] == 0, 5.0, 0.0).expand(4_000, 2)
    buffer.update_tensordict_priority(sample)
    assert (buffer.sample()["episode"] == 0).all()


def test_flags_of_the_first_step(made):
    data = episodes(LENGTHS)
    data["is_init"] = (data["step"] == 0)[:, None]
    window = reverb.Window(4, before=2, pad="left")
    buffer = made(window=window, batch_size=50, truncated_key=None)
    buffer.extend(data)
    sample = buffer.sample()
    mask = sample["reverb", "window_mask"]
    first = mask.int().argmax(1)
    begins = torch.nn.functional.one_hot(first, 6).bool() | (sample["step"] == 0)
    assert torch.equal(sample["is_init"][..., 0], begins)
    assert not sample["next", "truncated"].any()


def test_episodes_that_another_program_wrote(made):
    """A table with a signature, as that of a recorder, and a value of each whole item."""
    signature = {
        "observation": reverb.specs.TensorSpec([None, 2], np.float32),
        "reward": reverb.specs.TensorSpec([None], np.float64),
        "seed": reverb.specs.TensorSpec([], np.int64),
    }
    table = reverb.Table(
        "t",
        reverb.selectors.Uniform(over="steps"),
        reverb.selectors.Fifo(),
        100,
        reverb.rate_limiters.MinSize(1),
        signature=signature,
    )
    with reverb.Server([table]) as server:
        client = server.localhost_client()
        with client.trajectory_writer(20) as writer:
            for length in (6, 20):
                for at in range(length):
                    row = {"observation": np.full(2, at, np.float32), "reward": 1.0 * length}
                    writer.append(row | {"seed": at})
                history = writer.history
                item = {name: history[name][:] for name in ("observation", "reward")}
                writer.create_item("t", 1.0, item | {"seed": history["seed"][-1]})
                writer.end_episode()
        window = reverb.Window(5, before=1)
        buffer = made(server.localhost_client(), table="t", window=window, batch_size=100)
        sample = buffer.sample()
        start, length = sample["reverb", "window_start"], sample["reward"]
        assert set(length[:, 0].tolist()) == {6, 20}
        places = start + torch.arange(6)
        assert torch.equal(sample["observation"][..., 1], places.float())
        assert torch.equal(sample["seed"] + 1, length.long())
        assert torch.equal(sample["reverb", "num_windows"] + 5, length.int())
        copy = pickle.loads(pickle.dumps(buffer))
        assert copy.window == window
        assert copy.sample().batch_size == torch.Size([100, 6])
        assert [len(item) for item in copy.scan()] == [6, 20]
        copy.close()


def test_episodes_of_a_recorder(made):
    gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    from reverb.adapters.gymnasium import Episodes, Recorder, signature

    envs = gymnasium.make_vec("CartPole-v1", num_envs=2)
    items = Episodes(max_length=500)
    table = reverb.Table(
        "replay",
        reverb.selectors.Uniform(over="steps"),
        reverb.selectors.Fifo(),
        1_000,
        reverb.rate_limiters.MinSize(1),
        signature=signature(envs, items),
    )
    with reverb.Server([table]) as server:
        envs = Recorder(envs, server.localhost_client(), tables="replay", items=items)
        envs.action_space.seed(1)
        envs.reset(seed=1)
        for _ in range(200):
            envs.step(envs.action_space.sample())
        envs.close()
        window = reverb.Window(5, pad="right")
        buffer = made(f"localhost:{server.port}", window=window, batch_size=64)
        sample = buffer.sample()
        assert sample["observation"].shape == torch.Size([64, 5, 4])
        mask = sample["reverb", "window_mask"]
        assert mask[:, 0].all()
        assert not mask.all()
        inside = mask[:, 1:, None]
        following = sample["next_observation"][:, :-1].where(inside, torch.zeros(()))
        assert torch.equal(following, sample["observation"][:, 1:].where(inside, torch.zeros(())))
        ends = sample["terminated"].reshape(mask.shape)
        assert (ends | mask).all()  # Padding repeats the last step of an episode.


def test_a_server_of_its_own_and_threads_that_fetch_ahead(made):
    window = reverb.Window(4)
    with reverb.Server(tables("replay", alpha=0.6)) as server:
        address = f"localhost:{server.port}"
        collector = made(address, window=window)
        collector.extend(episodes(LENGTHS))
        learner = made(address, window=window, batch_size=16, prefetch=2)
        for _ in range(5):
            check(learner.sample(), window)


def test_no_episode_is_long_enough(made):
    buffer = made(window=reverb.Window(10), batch_size=2)
    with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
        buffer.sample()
    buffer.extend(episodes([3, 5]))
    with pytest.raises(RuntimeError, match=r"Cannot sample windows of 10 steps.*longest has 5"):
        buffer.sample()
    waiting = made(buffer.server, window=reverb.Window(10), batch_size=2, timeout_ms=20)
    with pytest.raises(DeadlineExceededError, match="the longest has 5"):
        waiting.sample()
    buffer.extend(episodes([10]))
    assert (buffer.sample()["reverb", "window_start"] == 0).all()


def test_states_are_of_whole_episodes(made, tmp_path):
    buffer = made(window=reverb.Window(4), batch_size=8)
    buffer.extend(episodes(LENGTHS))
    state = buffer.state_dict()
    buffer.dumps(tmp_path)
    # Another window of the same episodes.
    other = made(window=reverb.Window(2, before=1), batch_size=8)
    for load in (lambda it: it.load_state_dict(state), lambda it: it.loads(tmp_path)):
        load(other)
        check(other.sample(), other.window)
        with pytest.raises(InvalidArgumentError, match="whole episodes, for a window, and this"):
            load(made(batch_size=8))
    plain = made(batch_size=8).state_dict()
    del plain["episodes"]  # As an earlier release writes it.
    made(batch_size=8).load_state_dict(plain)
    with pytest.raises(InvalidArgumentError, match="has items without a window, and this"):
        other.load_state_dict(plain)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"window": 5}, TypeError, "window must be a reverb.Window, got int"),
        (
            {"window": reverb.Window(5), "sequence_length": 5},
            InvalidArgumentError,
            r"window=Window\(5\) and sequence_length=5 exclude each other",
        ),
        (
            {"window": reverb.Window(5, spans={"a": (0, 1)})},
            InvalidArgumentError,
            "window.spans must be empty",
        ),
        (
            {"window": reverb.Window(5), "consume_after_n_samples": 1},
            InvalidArgumentError,
            "consume_after_n_samples=1 is for items that are sampled whole",
        ),
        ({"end_key": "end"}, InvalidArgumentError, "give sequence_length or window"),
    ],
)
def test_wrong_arguments(options, error, text):
    with pytest.raises(error, match=text):
        ReverbReplayBuffer(**options)


def test_data_without_ends_of_episodes_is_refused(made):
    buffer = made(window=reverb.Window(2), batch_size=2)
    with pytest.raises(InvalidArgumentError, match="data must mark the ends of episodes"):
        buffer.extend(TensorDict({"x": torch.zeros(3)}, [3]))


def test_an_episode_has_a_largest_length(made):
    buffer = made(window=reverb.Window(2), batch_size=2)
    done = torch.zeros(65_537, 1, dtype=torch.bool)
    done[-1] = True
    following = TensorDict({"done": done}, [65_537])
    data = TensorDict({"next": following}, [65_537])
    buffer.extend(data[1:])
    assert len(buffer) == 1
    with pytest.raises(InvalidArgumentError, match="at most 65,536 steps, got 65,537"):
        buffer.extend(data)
    assert len(buffer) == 1
    buffer.extend(data[-3:])
    assert len(buffer) == 2
