# SPDX-License-Identifier: Apache-2.0
"""TorchRL's trainers and losses learn from the buffer."""

import warnings

import pytest
import torch

with warnings.catch_warnings():
    # TorchRL itself uses what it has deprecated.
    warnings.simplefilter("ignore")
    from tensordict.nn import TensorDictModule, TensorDictSequential
    from torchrl.collectors import Collector
    from torchrl.envs import Compose, DoubleToFloat, GymEnv, RewardSum, TransformedEnv
    from torchrl.modules import (
        MLP,
        EGreedyModule,
        NormalParamExtractor,
        ProbabilisticActor,
        QValueActor,
        TanhModule,
        TanhNormal,
        ValueOperator,
    )
    from torchrl.objectives import (
        CQLLoss,
        DDPGLoss,
        DQNLoss,
        IQLLoss,
        SACLoss,
        SoftUpdate,
        TD3Loss,
    )
    from torchrl.trainers import ReplayBufferTrainer
    from torchrl.trainers.algorithms import (
        CQLTrainer,
        DDPGTrainer,
        DQNTrainer,
        IQLTrainer,
        SACTrainer,
        TD3Trainer,
    )

import reverb
from reverb.adapters.torchrl import tables

pytestmark = pytest.mark.filterwarnings("ignore")
torch.set_num_threads(1)


def environment(name):
    rewards = RewardSum(in_keys=["reward"], out_keys=["reward_sum"])
    env = GymEnv(name, categorical_action_encoding=True)
    return TransformedEnv(env, Compose(DoubleToFloat(), rewards))


def network(inputs, outputs):
    return MLP(in_features=inputs, out_features=outputs, num_cells=[16])


def q_value():
    return ValueOperator(network(4, 1), in_keys=["observation", "action"])


def deterministic(env):
    module = TensorDictModule(network(3, 1), ["observation"], ["param"])
    tanh = TanhModule(in_keys=["param"], out_keys=["action"], spec=env.action_spec)
    return TensorDictSequential(module, tanh)


def stochastic(env):
    module = torch.nn.Sequential(network(3, 2), NormalParamExtractor())
    space = env.action_spec.space
    return ProbabilisticActor(
        TensorDictModule(module, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": space.low, "high": space.high},
    )


def dqn():
    env = environment("CartPole-v1")
    actor = QValueActor(network(4, 2), spec=env.action_spec, action_space="categorical")
    exploration = EGreedyModule(spec=env.action_spec, annealing_num_steps=100)
    loss = DQNLoss(actor, action_space="categorical", delay_value=True)
    policy = TensorDictSequential(actor, exploration)
    return DQNTrainer, env, policy, loss, {"greedy_module": exploration}


def ddpg():
    env = environment("Pendulum-v1")
    actor = deterministic(env)
    return DDPGTrainer, env, actor, DDPGLoss(actor, q_value(), delay_value=True), {}


def td3():
    env = environment("Pendulum-v1")
    actor = deterministic(env)
    return TD3Trainer, env, actor, TD3Loss(actor, q_value(), action_spec=env.action_spec), {}


def sac():
    env = environment("Pendulum-v1")
    actor = stochastic(env)
    return SACTrainer, env, actor, SACLoss(actor, q_value()), {}


def cql():
    env = environment("Pendulum-v1")
    actor = stochastic(env)
    return CQLTrainer, env, actor, CQLLoss(actor, q_value(), action_spec=env.action_spec), {}


def iql():
    env = environment("Pendulum-v1")
    actor = stochastic(env)
    value = ValueOperator(network(3, 1), in_keys=["observation"])
    return IQLTrainer, env, actor, IQLLoss(actor, q_value(), value), {}


def trainer_of(make, buffer, frames, **options):
    kind, env, policy, loss, others = make()
    loss.make_value_estimator(gamma=0.99)
    return kind(
        collector=Collector(env, policy, frames_per_batch=50, total_frames=frames),
        total_frames=frames,
        frame_skip=1,
        optim_steps_per_batch=3,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), 1e-3),
        replay_buffer=buffer,
        target_net_updater=SoftUpdate(loss, tau=0.01),
        progress_bar=False,
        log_interval=100,
        **others,
        **options,
    )


@pytest.mark.parametrize(
    "options", [{"alpha": 0.6, "beta": 0.4}, {"prefetch": 2}], ids=["priority", "prefetch"]
)
@pytest.mark.parametrize("make", [dqn, ddpg, td3, sac, cql, iql])
def test_trainers_run_to_the_end(made, make, options):
    buffer = made(max_size=150, batch_size=16, **options)
    trainer = trainer_of(make, buffer, 200)
    trainer.train()
    assert (trainer.collected_frames, trainer._optim_count) == (200, 12)
    assert (len(buffer), buffer.write_count) == (150, 200)
    # These two trainers update no priorities.
    if "alpha" in options and make not in (td3, cql):
        assert len({it.info.priority for it in buffer._access.client.scan("replay")}) > 2


def test_a_trainers_checkpoint_has_the_items(made, tmp_path):
    first = made(batch_size=16, alpha=0.6)
    trainer = trainer_of(
        dqn, first, 200, save_trainer_file=tmp_path / "trainer.pt", save_trainer_interval=100
    )
    ReplayBufferTrainer(first, batch_size=16).register(trainer)
    trainer.train()
    second = made(batch_size=16, alpha=0.6)
    other = trainer_of(dqn, second, 400)
    ReplayBufferTrainer(second, batch_size=16).register(other)
    other.load_from_file(tmp_path / "trainer.pt", weights_only=False)
    saved = len(second)
    assert 100 <= saved <= 400
    assert (second[:] == first[:saved]).all()
    other.train()
    assert len(second) > saved


def test_a_loop_of_ones_own_with_a_loss_and_priorities(made):
    _, env, policy, loss, _ = dqn()
    loss.make_value_estimator(gamma=0.99)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
    with reverb.Server(tables("replay", alpha=0.7)) as server:
        buffer = made(f"localhost:{server.port}", batch_size=32, beta=0.5)
        for data in Collector(env, policy, frames_per_batch=50, total_frames=200):
            buffer.extend(data.reshape(-1))
            for _ in range(2):
                sample = buffer.sample()
                loss(sample)["loss"].backward()
                optimizer.step()
                optimizer.zero_grad()
                buffer.update_tensordict_priority(sample)
        expected = dict(
            zip(sample["index"].tolist(), sample["td_error"].reshape(-1).tolist(), strict=True)
        )
        found = {
            torch.tensor(it.info.key, dtype=torch.uint64).view(torch.int64).item(): it.info.priority
            for it in buffer._access.client.scan("replay")
        }
        assert len(found) == 200
        for index, error in expected.items():
            assert found[index] == pytest.approx(error, rel=1e-4, abs=1e-6)
