# SPDX-License-Identifier: Apache-2.0
"""Items whose values tell the item and the step."""

import numpy as np


def fill(client, table, lengths, priorities=None):
    """Item `i` has the values `100 * i`, `100 * i + 1`, ...

    Its priority is `i + 1`, or the next one of `priorities`, which repeat.
    """
    with client.trajectory_writer(max(lengths)) as writer:
        for item, length in enumerate(lengths):
            for value in range(100 * item, 100 * item + length):
                writer.append({"a": np.full(2, value, np.float32), "b": np.int64(value)})
            columns = {key: writer.history[key][-length:] for key in ("a", "b")}
            priority = priorities[item % len(priorities)] if priorities else item + 1.0
            writer.create_item(table, priority, columns)
            writer.end_episode()
