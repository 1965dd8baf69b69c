# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/adapters.md.
"""Replacements of TF-Agents' replay buffer and observers, complete and faster.

A program replaces `from tf_agents.replay_buffers import reverb_replay_buffer, reverb_utils` with

    from reverb.adapters.tf_agents import reverb_replay_buffer, reverb_utils

and changes nothing else. The buffer needs TF-Agents and TensorFlow; the observers need neither.
"""
