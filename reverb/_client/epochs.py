# SPDX-License-Identifier: Apache-2.0
"""A reader's place in the epochs of a table whose sampler is `Shuffle`."""

import logging

from reverb._checks.arguments import check_at_least
from reverb.errors import InvalidArgumentError
from reverb.replay_sample import ReplayBatch

__all__ = ["Epochs", "check_epochs"]

_logger = logging.getLogger("reverb")


def check_epochs(epochs: int | None, drop_last: bool, partial: bool) -> int | None:
    """Returns the number of epochs that a reader wants; `None`: it does not count them.

    Raises:
      InvalidArgumentError: If the number is below 1, or if `drop_last` has no meaning.
      TypeError: If it is not an integer.
    """
    if drop_last and epochs is None:
        raise InvalidArgumentError("drop_last is for readers of epochs, got epochs=None")
    if drop_last and partial:
        raise InvalidArgumentError(
            "partial must be False with drop_last: with partial=True any batch may be short"
        )
    return None if epochs is None else check_at_least(1, "epochs", epochs)


class Epochs:
    """Counts the epochs of one reader, and says of which epoch its next request is.

    An answer without items means that the epoch is over.
    """

    # A request for a new epoch.
    NEW = -1

    def __init__(self, number: int, drop_last: bool) -> None:
        """Makes the place before the first of `number` epochs.

        `drop_last` drops the last batch of an epoch if it is shorter.
        """
        self._num_left = number
        self._drop_last = drop_last
        self._num_kept = 0
        self._present = self.NEW

    @property
    def are_over(self) -> bool:
        """Whether all epochs were read."""
        return self._num_left == 0

    @property
    def present(self) -> int:
        """The last epoch that the next request may sample from; -1: a new one."""
        return self._present

    def keeps(self, num_rows: int, batch_size: int) -> bool:
        """Whether a batch with so many rows, of at most `batch_size`, is returned."""
        keeps = num_rows == batch_size or (num_rows > 0 and not self._drop_last)
        self._num_kept += keeps
        return keeps

    def note(self, batch: ReplayBatch | None) -> bool:
        """Notes the answer to a request, without items or `None` if the epoch is over.

        Returns whether it is over.
        """
        if batch is None or not len(batch.info.key):
            self._num_left -= 1
            self._present += 1
            if self._drop_last and self.are_over and not self._num_kept:
                _logger.warning(
                    "the epochs have ended without a batch: an epoch has fewer items than a batch, "
                    "and drop_last=True drops them"
                )
            return True
        # A server that was started again counts its epochs from 0.
        self._present = int(batch.info.epoch[-1])
        return False
