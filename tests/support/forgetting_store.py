# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: all servers get a store that forgets every payload at once.

`make test-store` runs the tests with it, `make test-store JOURNAL=1` with stores that are journals.
Each chunk that they read comes from the disk then, unless it has 1 KiB or less. Servers of
`support.programs` get a store too. Those of an installed command, such as `reverb_server`, do not.
"""

from __future__ import annotations

import functools
import pathlib
import shutil
import tempfile
from typing import Any

import pytest

import reverb
from support import package_workers, programs

_TESTS = pathlib.Path(__file__).parents[1]
# Below the build: temporary directories may be memory, of which servers warn.
_STORES = _TESTS.parent / "target" / "stores"

# For servers without a limit, which a store needs.
_MAX_BYTES = "1GiB"

_FILLS = "It fills the memory first, and all that it inserts is on the disk at once."
_BYTES = "It tells what was compressed from how much memory it takes."
_LINE = "It counts lines, and the disk has one of its own."
# Tests, by the path of their file below this folder and their name, and why they cannot pass.
LEFT_OUT: dict[str, str] = {
    "api/test_max_bytes.py::test_a_forecast_knows_what_max_bytes_leaves_to_a_table": (
        "What max_bytes of the server leaves to a table is more with a disk."
    ),
    "api/test_max_bytes.py::test_a_server_that_restarts_counts_what_it_loads": (
        "It compares the memory with that after a load, and what is in memory changes meanwhile."
    ),
    "api/test_max_bytes.py::test_a_new_stream_is_refused_while_nothing_is_left": _FILLS,
    "api/test_max_bytes.py::test_the_numbers_add_up": _FILLS,
    "api/test_max_bytes.py::test_the_table_over_its_share_gives_up_items": _FILLS,
    "api/test_max_bytes.py::test_writers_wait_where_nothing_may_be_removed": _FILLS,
    "api/test_store.py::test_a_server_without_a_store_says_so": (
        "It needs a server without a store."
    ),
    "checkpoints/test_server_names.py::test_a_file_system_without_locks_is_told_and_used": (
        "A store needs a file system with locks, and refuses this one."
    ),
    "conformance/test_memory_limits.py::test_a_producer_of_a_full_queue_waits": _FILLS,
    "operations/test_addresses.py::test_of_several_servers_one_that_is_down_is_named": _LINE,
    "operations/test_addresses.py::test_several_servers_are_shown_each_under_its_name": _LINE,
    "operations/test_diagnosis.py::test_a_full_server_is_named": _FILLS,
    "operations/test_diagnosis.py::test_a_terminal_finds_nothing_to_obey_in_names": _LINE,
    "operations/test_store_status.py::test_why_tells_of_the_disk": (
        "It begins with a server without a store."
    ),
    "operations/test_top.py::test_keys": (
        "The line of the disk leaves too little of the screen for the list of keys."
    ),
    "operations/test_top.py::test_without_a_limit_there_is_no_bar": (
        "A server with a store has a limit of memory."
    ),
    "package/test_fork_server.py::test_a_fork_has_imported_the_package_and_another_one_has_not": (
        "Every program imports the package to give its servers stores."
    ),
    "process/test_memory.py::test_chunks_are_shared_by_items_and_tables": _FILLS,
    "process/test_memory.py::test_clients_do_not_keep_the_items_of_a_stopped_server": _FILLS,
    "process/test_memory.py::test_memory_of_a_small_item": (
        "It has close bounds, and a chunk on disk takes 144 bytes beside what writes and reads it."
    ),
    "process/test_memory.py::test_memory_of_an_emptied_table_comes_back": _FILLS,
    "process/test_memory.py::test_memory_of_an_emptied_table_comes_back_by_itself": _FILLS,
    "process/test_memory.py::test_memory_of_deleted_and_of_sampled_items_comes_back": _FILLS,
    "security/test_tokens_in_wrong_places.py::test_a_server_shows_no_token": (
        "Its tracebacks show the arguments of the function here that gives a server its store."
    ),
    "writers/test_compression.py::test_a_client_compresses_as_it_was_told": _BYTES,
    "writers/test_compression.py::test_a_writer_may_differ_from_its_client": _BYTES,
    "writers/test_compression.py::test_an_awaited_client_compresses_as_it_was_told": _BYTES,
    "writers/test_compression.py::test_an_awaited_writer_may_differ_from_its_client": _BYTES,
    "writers/test_insert_sequence.py::test_its_chunks_are_shared_by_the_tables": (
        "A client of the server's process keeps some of what it has sent, up to 4 MiB, in memory."
    ),
}


# The same of stores that are journals.
LEFT_OUT_OF_JOURNALS: dict[str, str] = {
    "process/test_memory.py::test_status_tells_what_the_memory_is": (
        "A moment before, the journal has encoded what it measures, and memory is freed later."
    ),
}


class ForgettingStore(reverb.Store):
    """A store whose payloads leave memory as soon as they are written."""

    _forgets_at_once = True


def give_stores(directory: str, journal: bool = False) -> None:
    """Gives a store below the directory to every server that this process makes from now on.

    A server with a store of its own keeps it.
    """
    start = reverb.Server.__init__

    @functools.wraps(start)
    def start_with_store(self: reverb.Server, *args: Any, **options: Any) -> None:
        if options.get("store") is None:
            path = tempfile.mkdtemp(dir=directory)
            options["store"] = ForgettingStore(path, journal=journal)
            if options.get("max_bytes") is None:
                options["max_bytes"] = _MAX_BYTES
        start(self, *args, **options)

    reverb.Server.__init__ = start_with_store


def prologue(directory: str, journal: bool = False) -> str:
    """What a program runs first, so that its servers get stores below the directory."""
    return f"""
from support import forgetting_store
forgetting_store.give_stores({directory!r}, {journal})
"""


def add_option(parser: Any) -> None:
    """Adds the option `--forgetting-store`."""
    kinds = {"nargs": "?", "const": "payloads", "choices": ("payloads", "journal")}
    parser.addoption("--forgetting-store", help="servers have a store", **kinds)


def configure(config: Any) -> None:
    """Adds the plugin to a run with the option."""
    if kind := config.getoption("forgetting_store", None):
        config.pluginmanager.register(Plugin(journal=kind == "journal"), "forgetting_store")


class Plugin:
    """Gives stores, and skips what cannot pass with one."""

    def __init__(self, *, journal: bool) -> None:
        self._left_out = LEFT_OUT | (LEFT_OUT_OF_JOURNALS if journal else {})
        _STORES.mkdir(parents=True, exist_ok=True)
        self._directory = tempfile.mkdtemp(dir=_STORES)
        # Programs of tests may run as other users.
        pathlib.Path(self._directory).chmod(0o777)
        give_stores(self._directory, journal)
        programs.PROLOGUE += prologue(self._directory, journal)
        package_workers.Worker.store_directory = self._directory

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skips what cannot pass."""
        for item in items:
            file = item.path.relative_to(_TESTS).as_posix()
            test = f"{file}::{getattr(item, 'originalname', item.name)}"
            if reason := self._left_out.get(test):
                item.add_marker(pytest.mark.skip(reason=reason))

    def pytest_unconfigure(self) -> None:
        """Removes the stores."""
        shutil.rmtree(self._directory, ignore_errors=True)
