# SPDX-License-Identifier: Apache-2.0
"""Hindsight: transitions of episodes with other goals, beside a loop over single transitions."""

import collections
import functools

import numpy as np
import pytest
import tree

import reverb
from reverb import testing
from reverb.errors import InvalidArgumentError

DRAWS = 100_000
LENGTHS = (4, 1, 7, 2)
NUM_STEPS = sum(LENGTHS)
FAR = 1000  # Goals of the episodes; no step reaches one.


def ragged(values, lengths=LENGTHS):
    return reverb.Ragged(np.asarray(values), np.cumsum([0, *lengths]))


def numbers(lengths):
    """The episode of each step, and its number in it."""
    episodes = np.repeat(np.arange(len(lengths)), lengths)
    return episodes, np.concatenate([np.arange(length) for length in lengths])


def episodes_of(lengths=LENGTHS):
    """Episodes as a recorder writes them. Step `s` of the batch leads from place `s` to `s + 0.5`.

    So the columns of a transition tell which step it is, and its goal which step has reached it.
    """
    steps = np.arange(sum(lengths))
    episodes, _ = numbers(lengths)

    def observation(place):
        return {
            "observation": ragged(np.stack([place, -place], 1).astype(np.float32), lengths),
            "achieved_goal": ragged(place[:, None], lengths),
            "desired_goal": ragged(FAR + episodes[:, None].astype(np.float64), lengths),
        }

    return {
        "observation": observation(steps.astype(np.float64)),
        "action": ragged(steps % 5, lengths),
        "reward": ragged(-steps.astype(np.float32), lengths),
        "next_observation": observation(steps + 0.5),
        "truncated": ragged(steps % 2 == 0, lengths),
        "episode": np.arange(len(lengths)),
    }


def sparse(achieved, goal, info):
    """The reward of a goal environment: 0 where it is reached, else -1."""
    return (achieved == goal).all(axis=-1).astype(np.float64) - 1


def choices(strategy, step, lengths=LENGTHS):
    """Steps of the batch whose achieved goal may become the goal of a step."""
    ends = np.cumsum(lengths)
    end = ends[np.searchsorted(ends, step, side="right")]
    start = end - lengths[np.searchsorted(ends, step, side="right")]
    return {
        "future": range(step, end),
        "final": range(end - 1, end),
        "episode": range(start, end),
    }[strategy]


def drawn(transitions, relabelled):
    """The step of each transition, and the step that reached its goal; `None` if it kept its."""
    steps = transitions["observation"]["observation"][:, 0].astype(int).tolist()
    goals = transitions["observation"]["desired_goal"][:, 0]
    reached = (goals[:relabelled] - 0.5).astype(int).tolist()
    return list(zip(steps, [*reached, *[None] * (len(steps) - relabelled)], strict=True))


def relabelled_one_by_one(data, draws):
    """The transitions of these draws, made by a loop, as rows of all columns."""

    def row(nest, step):
        if isinstance(nest, dict):
            return {name: row(part, step) for name, part in nest.items()}
        ends = np.cumsum(LENGTHS)
        episode = int(np.searchsorted(ends, step, side="right"))
        if not isinstance(nest, reverb.Ragged):
            return nest[episode]
        return nest[episode][step - (ends[episode] - LENGTHS[episode])]

    @functools.cache
    def transition(step, other):
        made = row(data, step)
        if other is not None:
            goal = row(data, other)["next_observation"]["achieved_goal"]
            made["observation"]["desired_goal"] = goal
            made["next_observation"]["desired_goal"] = goal
            reached = made["next_observation"]["achieved_goal"] == goal
            made["reward"] = np.float32(0 if reached.all() else -1)
        return made

    return [transition(step, other) for step, other in draws]


def stacked(rows):
    if isinstance(rows[0], dict):
        return {name: stacked([row[name] for row in rows]) for name in rows[0]}
    return np.array(rows)


def assert_equal(found, expected):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, part in expected.items():
            assert_equal(found[name], part)
        return
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def assert_uniform(counts, among):
    """Pearson's test: the counts are those of draws from `among` with equal probabilities."""
    assert set(counts) <= set(among)
    expected = sum(counts.values()) / len(among)
    distance = sum((counts[it] - expected) ** 2 / expected for it in among)
    freedom = len(among) - 1
    # Five standard deviations above the mean of the distribution.
    assert distance <= freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_transitions_are_those_of_a_loop(strategy):
    data = episodes_of()
    found = reverb.hindsight(data, DRAWS, reward=sparse, strategy=strategy, seed=1)
    draws = drawn(found, DRAWS * 8 // 10)
    assert_equal(found, stacked(relabelled_one_by_one(data, draws)))
    assert (found["next_observation"]["desired_goal"][DRAWS * 8 // 10 :] >= FAR).all()

    assert_uniform(collections.Counter(step for step, _ in draws), range(NUM_STEPS))
    by_step = collections.defaultdict(collections.Counter)
    for step, other in draws[: DRAWS * 8 // 10]:
        by_step[step][other] += 1
    assert len(by_step) == NUM_STEPS
    for step, counts in by_step.items():
        assert_uniform(counts, choices(strategy, step))


@pytest.mark.parametrize(
    ("ratio", "count", "expected"),
    [(0, 7, 0), (1, 7, 7), (0.5, 7, 4), (0.8, 1, 1), (0.8, 256, 205), (np.float32(0.25), 8, 2)],
)
def test_the_first_transitions_are_relabelled(ratio, count, expected):
    calls = []

    def reward(achieved, goal, info):
        calls.append(len(achieved))
        return sparse(achieved, goal, info)

    found = reverb.hindsight(episodes_of(), count, reward=reward, ratio=ratio, seed=3)
    kept = found["observation"]["desired_goal"][:, 0] >= FAR
    assert kept.tolist() == [False] * expected + [True] * (count - expected)
    assert calls == [expected] * (expected > 0)
    steps = found["observation"]["observation"][:, 0]
    assert (found["reward"] == -steps)[expected:].all()


def test_the_reward_sees_the_achieved_and_the_new_goal():
    seen = []

    def reward(achieved, goal, info):
        seen.append((achieved.copy(), goal.copy(), info))
        achieved[:] = goal[:] = np.nan  # Changes no transition.
        return np.arange(len(goal))

    data = episodes_of()
    data["info"] = {"cost": ragged(np.arange(NUM_STEPS) * 2), "limits": np.arange(4) + 7}
    found = reverb.hindsight(data, 10, reward=reward, seed=0)
    ((achieved, goal, info),) = seen
    assert_equal(achieved, found["next_observation"]["achieved_goal"][:8])
    assert_equal(goal, found["observation"]["desired_goal"][:8])
    assert_equal(info, {name: column[:8] for name, column in found["info"].items()})
    assert (info["cost"] == 2 * found["observation"]["observation"][:8, 0]).all()
    assert (info["limits"] == 7 + found["episode"][:8]).all()
    assert found["reward"][:8].tolist() == list(range(8))
    assert found["reward"].dtype == np.float32
    reverb.hindsight(episodes_of(), 10, reward=reward)
    assert seen[1][2] == {}


def test_a_batch_without_rewards_gets_them_all():
    data = episodes_of()
    del data["reward"]
    counts = []

    def reward(achieved, goal, info):
        counts.append(len(goal))
        return goal[:, 0] > FAR - 1

    found = reverb.hindsight(data, 10, reward=reward)
    assert counts == [10]
    assert found["reward"].dtype == np.float32
    assert found["reward"].tolist() == [0.0] * 8 + [1.0] * 2
    assert found.keys() == {*data, "reward"}


def test_the_batch_does_not_change():
    data = episodes_of()
    reverb.hindsight(data, 100, reward=sparse, ratio=1.0)
    for found, expected in zip(tree.flatten(data), tree.flatten(episodes_of()), strict=True):
        assert_equal(getattr(found, "values", found), getattr(expected, "values", expected))


def test_a_seed_repeats_and_a_generator_goes_on():
    data = episodes_of()

    def draw(seed):
        return drawn(reverb.hindsight(data, 50, reward=sparse, seed=seed), 40)

    assert draw(1) == draw(1) != draw(2)
    generator = np.random.default_rng(1)
    assert draw(generator) == draw(1)
    assert draw(generator) != draw(1)
    assert draw(None) != draw(None)


LAYOUTS = {
    "flat": ("achieved_goal", "desired_goal", "next_achieved_goal", ()),
    "flat, both goals": (
        "achieved_goal",
        "desired_goal",
        "next_achieved_goal",
        ("next_desired_goal",),
    ),
    "without the goal before": (None, "desired_goal", "next_achieved_goal", ()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_flat_columns(layout):
    achieved, goal, after, more = LAYOUTS[layout]
    steps = np.arange(NUM_STEPS)
    data = {goal: ragged(steps + FAR), after: ragged(steps + 1)}
    data |= {name: ragged(steps + FAR) for name in more}
    if achieved:
        data[achieved] = ragged(steps)
    found = reverb.hindsight(data, 100, reward=lambda a, g, _: a == g, strategy="final", ratio=1)
    ends = np.cumsum(LENGTHS)
    expected = ends[np.searchsorted(ends, found[after] - 1, side="right")]
    for name in (goal, *more):
        assert_equal(found[name], expected)
    assert (found["reward"] == (found[after] == expected)).all()


def test_a_nest_named_next():
    steps = np.arange(NUM_STEPS, dtype=np.float32)[:, None]
    data = {
        "achieved_goal": ragged(steps),
        "desired_goal": ragged(steps + FAR),
        "next": {
            "achieved_goal": ragged(steps + 1),
            "desired_goal": ragged(steps + FAR),
            "reward": ragged(steps),
        },
    }
    found = reverb.hindsight(data, 64, reward=sparse, ratio=1)
    goal = found["desired_goal"]
    assert_equal(found["next"]["desired_goal"], goal)
    assert (goal < FAR).all()
    assert_equal(found["next"]["reward"], (found["next"]["achieved_goal"] == goal) - np.float32(1))
    assert "reward" not in found


Step = collections.namedtuple("Step", "goal, place, next_place, reward")


def test_other_nests_and_their_paths():
    steps = np.arange(NUM_STEPS)
    columns = [ragged(steps + FAR), ragged(steps), ragged(steps + 1), ragged(steps)]
    by_name = {"goal": "goal", "achieved": "place"}
    options = {"reward": lambda a, g, _: a == g, "ratio": 1.0, "seed": 5}
    expected = reverb.hindsight(Step(*columns), 30, **by_name, **options)
    assert isinstance(expected, Step)
    assert (expected.goal < FAR).all()
    found = reverb.hindsight(Step(*columns), 30, goal="goal", achieved="next_place", **options)
    assert_equal(found._asdict(), expected._asdict())
    named = dict(zip("gpnr", columns, strict=True))
    del named["r"]
    found = reverb.hindsight(named, 30, goal="g", achieved=("n",), **options)
    assert_equal(found["g"], expected.goal)
    assert_equal(found["reward"], expected.reward.astype(np.float32))


def test_one_of_several_observations_by_its_path():
    data = {"first": episodes_of(), "second": episodes_of()}
    for agent in data.values():
        del agent["reward"]
    path = ("observation", "desired_goal")
    with pytest.raises(InvalidArgumentError, match=r"pass the path .* goal=\('first', 'obser"):
        reverb.hindsight(data, 9, reward=sparse)
    found = reverb.hindsight(
        data,
        9,
        reward=sparse,
        goal=("second", *path),
        achieved=("second", "observation", "achieved_goal"),
        ratio=1,
    )
    assert (found["first"]["observation"]["desired_goal"] >= FAR).all()
    assert (found["second"]["observation"]["desired_goal"] < FAR).all()
    assert (found["second"]["next_observation"]["desired_goal"] < FAR).all()


def poses():
    """Episodes whose goals have two parts, which are equal if they come from the same step."""
    steps = np.arange(NUM_STEPS, dtype=np.float64)

    def observation(place):
        return {
            "achieved_goal": {"angle": ragged(10 * place), "place": ragged(place[:, None])},
            "desired_goal": {"angle": ragged(steps + FAR), "place": ragged(steps[:, None] + FAR)},
        }

    return {"observation": observation(steps), "next_observation": observation(steps + 1)}


NESTS = {
    "by name": {},
    "by path": {
        "goal": ("observation", "desired_goal"),
        "achieved": ("observation", "achieved_goal"),
    },
}


@pytest.mark.parametrize("names", NESTS.values(), ids=NESTS)
def test_all_parts_of_a_nested_goal_come_from_one_step(names):
    seen = []

    def reward(achieved, goal, info):
        seen.append((achieved, goal))
        return achieved["place"][:, 0] == goal["place"][:, 0]

    found = reverb.hindsight(poses(), 100, reward=reward, ratio=0.5, **names)
    for observation in (found["observation"], found["next_observation"]):
        goal = observation["desired_goal"]
        assert (goal["angle"][:50] == 10 * goal["place"][:50, 0]).all()
        assert (goal["angle"][:50] <= 10 * NUM_STEPS).all()
        assert (goal["angle"][50:] >= FAR).all()
    ((achieved, goal),) = seen
    assert_equal(achieved, found["next_observation"]["achieved_goal"])
    assert_equal(goal, found["observation"]["desired_goal"])


def test_a_list_of_columns_is_one_goal():
    steps = np.arange(NUM_STEPS)
    data = {
        "goal": ragged(steps + FAR),
        "code": ragged(np.stack([steps + FAR] * 2, 1)),
        "next_place": ragged(steps + 1),
        "next_place_code": ragged(np.stack([steps + 1] * 2, 1)),
    }

    def reward(achieved, goal, info):
        assert [it.shape for it in achieved] == [it.shape for it in goal] == [(40,), (40, 2)]
        return achieved[0] == goal[0]

    names = {"goal": ["goal", "code"], "achieved": ["place", ("next_place_code",)]}
    found = reverb.hindsight(data, 40, reward=reward, ratio=1.0, **names)
    assert (found["goal"] <= NUM_STEPS).all()
    assert (found["code"] == found["goal"][:, None]).all()


def test_the_path_of_a_part_replaces_this_part():
    path = ("observation", "desired_goal", "angle")
    achieved = ("observation", "achieved_goal", "angle")
    found = reverb.hindsight(
        poses(), 9, reward=lambda a, g, _: a == g, ratio=1.0, goal=path, achieved=achieved
    )
    goal = found["next_observation"]["desired_goal"]
    assert (goal["angle"] < FAR).all()
    assert (goal["place"] >= FAR).all()


def test_goals_that_are_a_single_step_of_an_episode():
    steps = np.arange(NUM_STEPS)
    data = {"goal": FAR + np.arange(4), "next_place": ragged(steps + 1)}
    found = reverb.hindsight(
        data, 50, reward=lambda a, g, _: a == g, goal="goal", achieved="place", ratio=0.5
    )
    assert (found["goal"][:25] <= NUM_STEPS).all()
    episodes = np.searchsorted(np.cumsum(LENGTHS), found["next_place"] - 1, side="right")
    assert_equal(found["goal"][25:], FAR + episodes[25:])


def test_episodes_without_steps_are_never_drawn():
    lengths = [0, 3, 0, 2, 0]
    found = reverb.hindsight(episodes_of(lengths), 500, reward=sparse, strategy="episode")
    assert set(found["episode"]) == {1, 3}


def table():
    """Episodes of a walk to the right, whose goals are never reached."""
    signature = {
        "position": reverb.specs.TensorSpec([None], np.int64),
        "next_position": reverb.specs.TensorSpec([None], np.int64),
        "goal": reverb.specs.TensorSpec([None], np.int64),
    }
    return testing.table("table", max_size=100, signature=signature)


def write_walks(client, lengths):
    with client.sequence_writer("table", None, max_sequence_length=max(lengths)) as writer:
        for walk, length in enumerate(lengths):
            for t in range(length):
                at = 100 * walk + t
                writer.append(
                    {"position": at, "next_position": at + 1, "goal": -1}, is_last=t == length - 1
                )


@pytest.mark.parametrize("lengths", [(3, 1, 9), (4, 4, 4), (1, 1, 1)])
def test_batches_of_a_table(serve, lengths):
    client = serve(table())
    write_walks(client, lengths)
    batch = client.sample_batch(
        "table", 32, ragged="packed", unpack_as_table_signature=True, timeout_ms=60_000
    )
    options = {"reward": lambda a, g, _: a == g, "goal": "goal", "achieved": "position"}
    found = reverb.hindsight(batch, 400, **options, ratio=0.75)
    assert found.keys() == {"position", "next_position", "goal", "reward"}
    now, goal = found["position"], found["goal"]
    assert (goal[300:] == -1).all()
    walks = now // 100
    assert (goal[:300] > now[:300]).all()
    assert (goal[:300] <= 100 * walks[:300] + np.array(lengths)[walks[:300]]).all()
    assert_equal(found["reward"], (goal == now + 1).astype(np.float32))


# What texts say of the columns of `episodes_of`, and of columns in a list.
OF_EPISODES = (
    "its columns are 'action', 'episode', ('next_observation', 'achieved_goal'), "
    "('next_observation', 'desired_goal'), ('next_observation', 'observation'), ('observation', "
    "'achieved_goal'), ('observation', 'desired_goal'), ('observation', 'observation'), 'reward', "
    "'truncated'"
)
NAMELESS = (
    "They have no names: sample a table with a signature with unpack_as_table_signature=True, or "
    "pass positions, such as (0,)"
)


def fault(**options):
    with pytest.raises((InvalidArgumentError, TypeError)) as caught:
        reverb.hindsight(
            options.pop("batch", episodes_of()),
            options.pop("num_transitions", 9),
            **{"reward": sparse, **options},
        )
    is_type = isinstance(caught.value, TypeError)
    return f"TypeError: {caught.value}" if is_type else str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_transitions": 0}, "num_transitions must be at least 1, got 0"),
        ({"num_transitions": 2.5}, "TypeError: num_transitions must be an integer, got float"),
        ({"ratio": 1.1}, "ratio must be from 0 to 1, got 1.1"),
        ({"ratio": float("nan")}, "ratio must be from 0 to 1, got nan"),
        ({"ratio": "all"}, "TypeError: ratio must be a number, got str"),
        ({"strategy": "random"}, 'strategy must be "future", "final" or "episode", got \'random\''),
        (
            {"reward": 1.0},
            "TypeError: reward must be a function of (achieved, goal, info), got float",
        ),
        (
            {"seed": -1},
            "seed must be a number of at least 0, a numpy.random.Generator or None, got -1",
        ),
        (
            {"goal": 3},
            "TypeError: goal must be a name, a tuple of names that is a path, or a list of these, "
            "got int",
        ),
        (
            {"goal": "target", "batch": {"goal": ragged(range(14)), "at": ragged(range(14))}},
            "goal is 'target', which is no column of batch; its columns are 'at', 'goal'",
        ),
        (
            {"batch": [ragged(range(14)), ragged(range(14))]},
            "goal is 'desired_goal', which is no column of batch; its columns are 0, 1. "
            f"{NAMELESS}",
        ),
        (
            {"batch": [ragged(range(14)), ragged(range(14))], "goal": (0,), "achieved": (1,)},
            "batch must have a column 'reward', or be a dict, to which it is added; its columns "
            f"are 0, 1. {NAMELESS}",
        ),
        (
            {"batch": {"desired_goal": ragged(range(14)), "achieved_goal": ragged(range(14))}},
            "achieved is 'achieved_goal', and no column has its value after the step: its name, "
            "or that of a nest around it, would begin with 'next'. If 'achieved_goal' has it, "
            "pass its path, achieved=('achieved_goal',); the columns of batch are "
            "'achieved_goal', 'desired_goal'",
        ),
        (
            {
                "batch": {
                    "goal": ragged(range(14)),
                    "next": {"at": ragged(range(14))},
                    "next_at": ragged(range(14)),
                },
                "goal": "goal",
                "achieved": "at",
            },
            "achieved is 'at', and several columns are its value after the step: ('next', 'at'), "
            "'next_at'; leave others out by columns= of sample_batch",
        ),
        (
            {"achieved": "desired_goal"},
            "goal and achieved must be different columns, got ('next_observation', "
            "'desired_goal') in both",
        ),
        (
            {"goal": ["desired_goal", "desired_goal"], "achieved": ["achieved_goal"] * 2},
            "goal must name a column once, got ('next_observation', 'desired_goal') twice",
        ),
        (
            {"goal": ["desired_goal"]},
            "goal and achieved must have the same parts; goal is ('observation', 'desired_goal'), "
            "and achieved is ('next_observation', 'achieved_goal'). Pass a list of columns for "
            "each, in the same order",
        ),
        (
            {"goal": ["desired_goal", "target"]},
            f"goal[1] is 'target', which is no column of batch; {OF_EPISODES}",
        ),
        ({"goal": "next"}, f"goal is 'next', which is no column of batch; {OF_EPISODES}"),
        (
            {"batch": {"a": np.zeros((2, 7)), "b": np.zeros(2)}},
            "batch must have packed columns, reverb.Ragged; sample it with ragged='packed' by "
            "Client.sample_batch or reverb.batches, not by a loader of another library. Its "
            "columns are 'a', 'b'",
        ),
        (
            {"batch": {"a": ragged(range(14)), "b": ragged(range(3), [1, 2])}},
            "the columns of batch must have the same number of steps in each item; 'a' and 'b' "
            "differ. Leave one of them out by columns= of sample_batch",
        ),
        (
            {"batch": {"a": ragged(range(14)), "b": np.zeros(3)}},
            "TypeError: column 'b' of batch must be a reverb.Ragged, or an array with a row for "
            "each of 4 episodes, got ndarray",
        ),
        ({"batch": {"a": ragged([], [0, 0])}}, "batch must have at least one step, got none"),
        (
            {"batch": {"next_achieved_goal": ragged(range(14)), "desired_goal": np.zeros((4, 2))}},
            "achieved must be a column with the shape and the kind of dtype of the goals; "
            "'next_achieved_goal' has steps of int64 [], and 'desired_goal' of float64 [2]",
        ),
        (
            {"batch": {"next_achieved_goal": ragged(np.zeros(14)), "desired_goal": np.arange(4)}},
            "achieved must be a column with the shape and the kind of dtype of the goals; "
            "'next_achieved_goal' has steps of float64 [], and 'desired_goal' of int64 []",
        ),
        (
            {"reward": lambda a, g, _: np.float32(0)},
            "reward must return a number for each of 7 transitions, [7], got shape []; it gets "
            "arrays [7, ...], and is called once",
        ),
        (
            {"reward": lambda a, g, _: a - g + 1j},
            "reward must return numbers that fit into float32, the dtype of rewards, got "
            "complex128",
        ),
        (
            {"batch": episodes_of() | {"other": {"reward": ragged(range(14))}}},
            "batch must have one column 'reward', got ('other', 'reward'), 'reward'; leave others "
            "out by columns= of sample_batch",
        ),
    ],
)
def test_wrong_arguments(options, text):
    assert fault(**options) == text
