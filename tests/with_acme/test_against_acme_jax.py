# SPDX-License-Identifier: Apache-2.0
"""Batches on their way into JAX, and Acme's JAX DQN learner over them.

Needs Acme and JAX; skipped where they are not installed. Released Acme and JAX of today need
`-p jax_compat` of tests/integrations/stubs.
"""

import jax
import numpy as np
import pytest
from dm_env import specs

import reverb
from reverb.adapters.acme import adders, datasets, reverb_utils, tables
from reverb.adapters.acme.specs import EnvironmentSpec

ENVIRONMENT_SPEC = EnvironmentSpec(
    observations=specs.Array((2,), np.float32),
    actions=specs.DiscreteArray(3, np.int32),
    rewards=specs.Array((), np.float32),
    discounts=specs.Array((), np.float32),
)


@pytest.fixture
def replay(serve_tables, play, episode):
    """A client of a table with a hundred transitions."""
    signature = adders.NStepTransitionAdder.signature(ENVIRONMENT_SPEC)
    client = serve_tables(tables.make_prioritized_table(signature, priority_exponent=0.6))
    observation = {"observation": lambda i: np.full(2, i, np.float32)}
    first, steps = episode(100, **observation)
    steps = [(np.int32(action % 3), timestep, extras) for action, timestep, extras in steps]
    play(adders.NStepTransitionAdder(client, 1, 0.99), (first, steps))
    return client


def test_batches_are_put_on_a_device_in_the_background(replay):
    dataset = datasets.make_reverb_dataset(replay, batch_size=8).map(
        lambda sample: sample._replace(data=jax.device_put(sample.data))
    )
    sums = jax.jit(lambda data: data.observation.sum(1) + data.reward)
    with iter(dataset) as iterator:
        for _ in range(3):
            sample = next(iterator)
            assert isinstance(sample.data.reward, jax.Array)
            assert sample.info.key.dtype == np.uint64
            np.testing.assert_allclose(
                sums(sample.data), 3 * np.asarray(sample.data.observation)[:, 0] + 1
            )


def test_one_compilation_serves_all_iterators(replay):
    traced = []

    @jax.jit
    def reward(data):
        traced.append(data)
        return data.reward

    for _ in range(2):
        client = reverb.Client(replay.server_address)
        with iter(datasets.make_reverb_dataset(client, batch_size=4)) as iterator:
            reward(next(iterator).data)
    assert len(traced) == 1


def test_transitions_of_steps_inside_jit():
    steps = adders.Step(
        observation=np.float32([1, 2]),
        action=np.int32([7]),
        reward={"a": np.float32([1, 2, 3])},
        discount=np.float32([1, 1, 0.5]),
        start_of_episode=np.array([True]),
    )
    made = jax.jit(lambda steps: adders.n_step_from_trajectory(steps, 0.5))(steps)
    expected = adders.n_step_from_trajectory(steps, 0.5)
    assert type(made) is type(expected)
    jax.tree_util.tree_map(np.testing.assert_array_equal, made, expected)
    assert made.reward["a"].dtype == np.float32


def test_transitions_of_sequences_inside_jit():
    numbers = np.arange(6).reshape(2, 3)
    steps = adders.Step(numbers[..., None], numbers, numbers, numbers, numbers == 0)

    def convert(steps):
        sample = reverb.ReplaySample(None, steps)
        return reverb_utils.replay_sample_to_sars_transition(
            sample, is_sequence=True, strip_last_transition=True, flatten_batch=True
        )

    jax.tree_util.tree_map(np.testing.assert_array_equal, jax.jit(convert)(steps), convert(steps))


@pytest.mark.filterwarnings("ignore")  # Warnings of Acme and of its imports.
def test_the_dqn_learner_of_acme(replay, until):
    learning = pytest.importorskip(
        "acme.agents.jax.dqn.learning", reason="needs -p jax_compat", exc_type=Exception
    )
    import haiku as hk
    import optax
    from acme.jax import networks

    net = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([8, 3])(x)))
    network = networks.FeedForwardNetwork(
        init=lambda key: net.init(key, np.zeros((1, 2), np.float32)), apply=net.apply
    )
    iterator = datasets.make_reverb_dataset(replay, batch_size=16).as_numpy_iterator()
    learner = learning.DQNLearner(
        network=network,
        discount=0.99,
        importance_sampling_exponent=0.2,
        target_update_period=10,
        iterator=iterator,
        optimizer=optax.adam(1e-3),
        random_key=jax.random.PRNGKey(0),
        replay_client=replay,
    )
    before = learner.get_variables(["policy"])[0]
    num_steps = 0
    while num_steps < 20:
        until(iterator.ready)
        learner.step()
        num_steps += 1
    after = learner.get_variables(["policy"])[0]
    changed = jax.tree_util.tree_map(lambda x, y: bool((x != y).any()), before, after)
    assert any(jax.tree_util.tree_leaves(changed))

    def priorities():
        samples = replay.sample_batch("priority_table", 100).info
        return set(samples.priority.tolist())

    until(lambda: len(priorities()) > 1)  # The learner sets them in the background.
    iterator.close()
