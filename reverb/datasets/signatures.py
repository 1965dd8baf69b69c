# SPDX-License-Identifier: Apache-2.0
"""The signatures of tables for items of a dataset."""

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from reverb import specs
from reverb._recording.item_makers import num_rows, time_of
from reverb._recording.items import Items
from reverb._recording.nests import map_nest, without
from reverb.datasets.episode import Episode, checked
from reverb.datasets.table_columns import DIGEST, EPISODE_ID, TableColumns

__all__ = ["signature"]


def signature(
    episode: Episode,
    items: Items,
    *,
    episode_ids: bool = True,
    leave_out: Collection[str] = (),
    reward_dtype: npt.DTypeLike = np.float32,
) -> dict[str, Any]:
    """Returns the signature of a table for the items of a dataset.

    It is that of a recorder, with a column for each info, and with `episode_id` and
    `values_digest`.

    Example:
      >>> from reverb import datasets
      >>> episode = datasets.Episode(
      ...     observations=np.zeros((3, 4), np.float32),
      ...     actions=np.zeros(2, np.int64),
      ...     rewards=np.ones(2, np.float32),
      ...     terminated=np.array([False, True]),
      ...     truncated=np.array([False, False]),
      ... )
      >>> datasets.signature(episode, datasets.Transitions())["observation"].shape
      (4,)

    Args:
      episode: One episode of the dataset.
      items: The kind of items.
      episode_ids: Whether the items have the column `episode_id`, by which imports continue, and
        `values_digest`, by which they see that an episode has changed.
      leave_out: As in `write`; "infos" for all infos; also "values_digest".
      reward_dtype: Dtype of the rewards; recorders write float32.

    Raises:
      InvalidArgumentError: If the episode is not whole.
    """
    num_rows(items, None)  # Checks the type.
    columns = TableColumns("", None, items, leave_out)
    whole = columns.prepared(episode)
    whole = checked(whole) or whole

    def spec(name: str, leaf: Any) -> specs.TensorSpec:
        return specs.TensorSpec((*time_of(items), *leaf.shape[1:]), leaf.dtype, name)

    nests = {
        "observation": whole.observations,
        "action": whole.actions,
        "reward": whole.rewards.astype(reward_dtype),
        "discount": np.zeros(1, np.float32),
        "next_observation": whole.observations,
        "terminated": whole.terminated,
        "truncated": whole.truncated,
        **columns.infos(whole),
    }
    if episode_ids:
        nests |= {name: np.zeros(1, np.int64) for name in (EPISODE_ID, DIGEST)}
    left_out = [*columns.left_out, *([DIGEST] if DIGEST in leave_out else [])]
    return {
        name: map_nest(lambda leaf, name=name: spec(name, leaf), nest)
        for name, nest in without(nests, left_out.__contains__).items()
    }
