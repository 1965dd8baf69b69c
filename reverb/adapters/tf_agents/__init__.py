# SPDX-License-Identifier: Apache-2.0
"""Replay buffer and observers of TF-Agents, whole and faster.

    from reverb.adapters.tf_agents import reverb_replay_buffer, reverb_utils

in place of `from tf_agents.replay_buffers import reverb_replay_buffer, reverb_utils` is all that a
program changes. The buffer needs TF-Agents and TensorFlow; the observers need neither.
"""
