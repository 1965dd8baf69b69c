# SPDX-License-Identifier: Apache-2.0
"""How much a file may claim: every maximum of the formats.

An untrusted file may claim any size, so that each claim is compared with these before memory is
taken for it. Reading takes 64 MiB, one episode, and one unit of the file: a row group, a record, a
chunk or an image. `max_bytes` bounds an episode and a unit, each.
"""

import dataclasses

from reverb import errors

__all__ = [
    "BATCH_BYTES",
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_EPISODES",
    "MAX_FIELDS",
    "MAX_FOOTER_BYTES",
    "MAX_HEADER_BYTES",
    "MAX_IMAGE_BYTES",
    "MAX_JSON_BYTES",
    "MAX_JSON_NESTS",
    "MAX_ROWS",
    "Limits",
]

# Maximum size of an episode, and of a unit of a file, if the program gives no other.
MAX_BYTES = 1 << 30
# Maximum size of a decoded image: 4,096 x 4,096 pixels of four bytes.
MAX_IMAGE_BYTES = 64 << 20
# Rows that are decoded at a time, and their size.
BATCH_BYTES = 16 << 20
MAX_ROWS = 65_536
# Maximum number of the fields of a dataset, and of the nests around one.
MAX_FIELDS = 4096
MAX_DEPTH = 32
# Maximum size of the header of an array in a `.npz` file; NumPy has the same limit.
MAX_HEADER_BYTES = 10_000
# Maximum size of the end of a Parquet file, which lists its row groups.
MAX_FOOTER_BYTES = 16 << 20
# Maximum size of a file of JSON, and number of the objects and lists in it, which take more memory
# than their text.
MAX_JSON_BYTES = 16 << 20
MAX_JSON_NESTS = 100_000
# Maximum number of the episodes of a file, whose ends are kept in memory: 8 bytes each.
MAX_EPISODES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of an episode.

    Attributes:
      max_bytes: Largest size of an episode, and of a unit of a file.
      max_length: Largest number of steps of an episode; `None`: as many as `max_bytes` holds.
    """

    max_bytes: int
    max_length: int | None

    def check(self, where: str, what: str, num_bytes: int) -> None:
        """Raises `InvalidArgumentError` if an episode or a unit of a file is too large."""
        if num_bytes > self.max_bytes:
            raise errors.InvalidArgumentError(
                f"{where}: {what} takes {num_bytes:,} bytes of memory, more than max_bytes = "
                f"{self.max_bytes:,}; pass a larger max_bytes, if the file is to be trusted"
            )

    def check_length(self, where: str, num_steps: int) -> None:
        """Raises `InvalidArgumentError` if an episode has too many steps."""
        if self.max_length is not None and num_steps > self.max_length:
            raise errors.InvalidArgumentError(
                f"{where}, field rewards: has {num_steps} steps, more than max_length = "
                f'{self.max_length}; pass a larger max_length, or long_episodes="drop"'
            )
