# SPDX-License-Identifier: Apache-2.0
"""The directories of `reverb_server`: of its checkpoints and of its store."""

import os
import pathlib
import tempfile

from reverb._checkpoints.stored import absolute_path
from reverb._server.store import Store
from reverb.server_executable.settings import Setting, Settings

__all__ = ["directory_problems", "store_of"]


def store_of(settings: Settings) -> Store | None:
    """Returns the store that the settings describe; `None` if the server has none."""
    if settings["store"] is None:
        return None
    return Store(
        settings["store"],
        max_bytes=settings["store_max_bytes"],
        journal=settings["store_journal"],
        sync_interval_s=settings["store_sync_interval"],
        restore_settings=settings["store_restore_settings"],
    )


def directory_problems(settings: Settings) -> list[str]:
    """Why a server could not write to its directories, each a line. Leaves no files there."""
    problems = _problems(settings.options["checkpoint_dir"], "directory of checkpoints")
    store = settings.options["store"]
    problems += _problems(store, "store")
    journal = settings.options["store_journal"]
    if store.value is not None and not journal.value and settings["max_bytes"] is None:
        problems.append(
            f"{journal.origin}: a store without a journal needs --max-bytes (max_bytes): without "
            "it nothing would go to disk"
        )
    return problems


def _problems(setting: Setting, what: str) -> list[str]:
    if setting.value is None:
        return []
    path = nearest = pathlib.Path(absolute_path(setting.value))
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    reason = None
    if not nearest.is_dir():
        reason = f"{nearest} is not a directory"
    elif not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        reason = f"{nearest} cannot be read and written by this user"
    else:
        try:
            tempfile.TemporaryFile(dir=nearest).close()
        except OSError as error:
            reason = f"no file can be made in {nearest}: {error.strerror}"
    if reason is None:
        return []
    return [f"{setting.origin}: the {what} {path} cannot be used: {reason}"]
