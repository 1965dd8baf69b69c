# SPDX-License-Identifier: Apache-2.0
"""The tasks that the methods of large classes are for; `method_tables` shows them in this order.

`tests/package/test_method_groups.py` compares the names with the methods that the classes have.
"""

CLIENT = {
    "Write": [
        "insert",
        "insert_batch",
        "insert_sequence",
        "trajectory_writer",
        "batched_trajectory_writer",
        "sequence_writer",
        "structured_writer",
        "writer",
    ],
    "Sample": ["sample", "sample_batch", "batch_sampler", "batches"],
    "Read, update and delete stored items": [
        "scan",
        "fetch",
        "update_priorities",
        "mutate_priorities",
        "delete_items",
        "reset",
    ],
    "Items that grow: rollouts": [
        "insert_item",
        "open_item",
        "add_rollout",
        "fail_rollout",
        "take",
        "fetch_rollouts",
        "extend",
        "ack",
        "release",
        "set_version",
    ],
    "Look at tables and servers": [
        "tables",
        "size",
        "server_info",
        "capabilities",
        "status",
        "diagnose",
        "checkpoint_status",
        "shard_info",
        "directory",
        "updates_missed",
        "server_address",
    ],
    "Change tables and servers": [
        "configure_table",
        "configure_tables",
        "pause_table",
        "resume_table",
        "rate_limiter_off",
        "checkpoint",
        "sync",
        "drain",
        "close",
    ],
}

GROUPS = {"reverb.Client": CLIENT, "reverb.aio.Client": CLIENT}
