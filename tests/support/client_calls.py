# SPDX-License-Identifier: Apache-2.0
"""The calls of a client that one expression makes, of the blocking and of the awaited client."""

import numpy as np

import reverb

CALLS = {
    "server_info": lambda client: client.server_info(),
    "capabilities": lambda client: client.capabilities(),
    "tables": lambda client: client.tables(),
    "size": lambda client: client.size("table"),
    "reset": lambda client: client.reset("table"),
    "mutate_priorities": lambda client: client.mutate_priorities("table", deletes=[1]),
    "update_priorities": lambda client: client.update_priorities("table", [1], [1.0]),
    "checkpoint": lambda client: client.checkpoint(),
    "checkpoint_status": lambda client: client.checkpoint_status(),
    "status": lambda client: client.status(),
    "diagnose": lambda client: client.diagnose("table"),
    "configure_table": lambda client: client.configure_table("table", max_size=5),
    "configure_tables": lambda client: client.configure_tables({"table": reverb.TableChange()}),
    "pause_table": lambda client: client.pause_table("table"),
    "resume_table": lambda client: client.resume_table("table"),
    "sync": lambda client: client.sync(),
    "drain": lambda client: client.drain(),
    "directory": lambda client: client.directory(),
    "sample_batch": lambda client: client.sample_batch("table", 2),
    "fetch": lambda client: client.fetch("table", [1]),
    "delete_items": lambda client: client.delete_items("table", [1]),
}
INSERTS = {
    "insert": lambda client: client.insert([1], {"table": 1.0}),
    "insert_batch": lambda client: client.insert_batch([np.arange(2)], {"table": np.ones(2)}),
    "insert_sequence": lambda client: client.insert_sequence([np.arange(2)], {"table": 1.0}),
}
ROLLOUTS = {
    "insert_item": lambda client: client.insert_item("table", {"prompt": np.arange(2)}),
    "take": lambda client: client.take("table", 1),
    "set_version": lambda client: client.set_version("table", 1),
}
# Calls that need an item or a batch that the client has taken; `tests/rollouts` makes them.
OF_ITEMS = {"add_rollout", "fail_rollout", "extend", "fetch_rollouts", "ack", "release"}
