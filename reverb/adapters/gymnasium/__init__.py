# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/adapters.md.
"""Wrappers of Gymnasium's environments that record their steps in tables.

    from reverb.adapters.gymnasium import Recorder, Transitions

    envs = Recorder(envs, client, tables="replay", items=Transitions(n_step=3))

The rest of the program stays as it is. `Recorder` is for vector environments with any of the three
autoreset modes, and `EnvRecorder` for single environments.
"""

from reverb._recording.items import Episodes, Sequences, Transitions
from reverb.adapters.gymnasium.env_recorder import EnvRecorder
from reverb.adapters.gymnasium.recorder import Recorder
from reverb.adapters.gymnasium.signatures import signature

__all__ = ["EnvRecorder", "Episodes", "Recorder", "Sequences", "Transitions", "signature"]
