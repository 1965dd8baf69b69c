# SPDX-License-Identifier: Apache-2.0
"""Items by each kind of writer: `EVERY_WRITER["sequence_writer"](client, "table")`."""

from support import writer_kinds


def structured_writer(client, table):
    """A writer of patterns that makes an item of each step."""
    writer, _ = writer_kinds.structured(client, table)
    return writer


def _writes(make):
    def write(client, table, count=1):
        writer, add = make(client, table)
        for _ in range(count):
            add()
        writer.flush()
        return writer

    return write


# Each writes `count` items into a table, and returns the open writer when they are confirmed.
EVERY_WRITER = {
    "trajectory_writer": _writes(writer_kinds.trajectory),
    "batched_trajectory_writer": _writes(writer_kinds.batched),
    "sequence_writer": _writes(writer_kinds.sequence),
    "structured_writer": _writes(writer_kinds.structured),
    "writer": _writes(writer_kinds.legacy),
}
