# SPDX-License-Identifier: Apache-2.0
"""Arguments of wrong types: each `TypeError` names the argument, what came and what is expected."""

import re

import numpy as np
import pytest

import reverb
from reverb import rate_limiters, selectors, testing

TABLE = "table must be a str, the name of a table, got int"
MAPPING = "priorities must be a mapping of tables to priorities, got list"
RESULTS = "configs must be results of reverb.structured.create_config, got int"
SELECTOR = "must be an object of reverb.selectors, such as reverb.selectors.Fifo(), got"
LIMITER = (
    "rate_limiter must be an object of reverb.rate_limiters, such as "
    "reverb.rate_limiters.MinSize(1), got int"
)


def integer(argument, kind="str"):
    return f"{argument} must be an integer, got {kind}"


def number(argument, kind="str"):
    return f"{argument} must be a number, got {kind}"


def table(**changes):
    arguments = {
        "name": "a",
        "sampler": selectors.Fifo(),
        "remover": selectors.Fifo(),
        "max_size": 1,
        "rate_limiter": rate_limiters.MinSize(1),
    }
    return reverb.Table(**(arguments | changes))


def server(**options):
    with reverb.Server([table()], **options):
        pass


def item(client, table="t", priority=1.0, leaf=None, **options):
    with client.trajectory_writer(1) as writer:
        writer.append({"x": 1.0})
        leaf = writer.history["x"][-1:] if leaf is None else leaf
        writer.create_item(table, priority, {"x": leaf}, **options)


def legacy(client, *arguments):
    writer = client.writer(2)
    writer.append([1.0])
    try:
        writer.create_item(*arguments)
    finally:
        writer.close()


def rows(client, *arguments):
    with client.batched_trajectory_writer(2, 1) as writer:
        writer.append([np.zeros(2)])
        writer.create_items(*arguments, [writer.history[0][-1:]])


def flush(client, *arguments):
    with client.trajectory_writer(1) as writer:
        writer.flush(*arguments)


ATTRIBUTE_ERRORS = {"structured_writer config", "Table limiter", "Server checkpointer"}
CALLS = {
    "Client address": (lambda c: reverb.Client(5), "server_address must be a str, got int"),
    "Client time": (
        lambda c: reverb.Client("localhost:1", connect_timeout_s="x"),
        number("connect_timeout_s"),
    ),
    "Client keepalive": (
        lambda c: reverb.Client("localhost:1", keepalive_s="x"),
        number("keepalive_s"),
    ),
    "insert list": (lambda c: c.insert([1.0], ["t"]), MAPPING),
    "insert priority": (
        lambda c: c.insert([1.0], {"t": None}),
        "priorities must be numbers, got NoneType for table t",
    ),
    "insert table": (lambda c: c.insert([1.0], {5: 1.0}), "tables must be named by a str, got int"),
    "insert removal": (
        lambda c: c.insert([1.0], {"t": 1.0}, removal_priorities=[1.0]),
        f"removal_{MAPPING}",
    ),
    "insert removal priority": (
        lambda c: c.insert([1.0], {"t": 1.0}, removal_priorities={"t": "x"}),
        "removal_priorities must be numbers, got str for table t",
    ),
    "insert_batch list": (lambda c: c.insert_batch([np.ones(2)], ["t"]), MAPPING),
    "insert_batch priority": (
        lambda c: c.insert_batch([np.ones(2)], {"t": "x"}),
        "priorities must be numbers, got str",
    ),
    "insert_batch leaf": (
        lambda c: c.insert_batch({"x": np.ones(2), "y": {"z": object()}}, {"t": 1.0}),
        "leaf 'y/z' of data must be an array of numbers, booleans, str or bytes, got object",
    ),
    "insert_sequence leaf": (
        lambda c: c.insert_sequence({"x": None}, {"t": 1.0}),
        "leaf 'x' of data must be an array of numbers, booleans, str or bytes, got NoneType",
    ),
    "insert_sequence list": (lambda c: c.insert_sequence([np.ones(2)], ["t"]), MAPPING),
    "sample table": (lambda c: next(c.sample(5)), TABLE),
    "sample number": (lambda c: next(c.sample("t", "x")), integer("num_samples")),
    "sample time": (lambda c: next(c.sample("t", timeout_ms=1.5)), integer("timeout_ms", "float")),
    "sample_batch table": (lambda c: c.sample_batch(5, 1), TABLE),
    "sample_batch size": (lambda c: c.sample_batch("t", 1.5), integer("batch_size", "float")),
    "sample_batch time": (lambda c: c.sample_batch("t", 1, timeout_ms="x"), integer("timeout_ms")),
    "batch_sampler": (lambda c: c.batch_sampler("t", None), integer("batch_size", "NoneType")),
    "batches client": (
        lambda c: reverb.batches(5, "t", 1),
        "client must be a reverb.Client or an address, got int",
    ),
    "batches size": (lambda c: c.batches("t", "x"), integer("batch_size")),
    "batches time": (lambda c: c.batches("t", 1, timeout_ms="x"), integer("timeout_ms")),
    "scan": (lambda c: next(c.scan(5)), TABLE),
    "mutate table": (lambda c: c.mutate_priorities(5), TABLE),
    "mutate key": (
        lambda c: c.mutate_priorities("t", {"a": 1.0}),
        "keys must be integers, got str",
    ),
    "mutate deletes": (
        lambda c: c.mutate_priorities("t", deletes=5),
        "deletes must be a list of keys, got int",
    ),
    "update table": (lambda c: c.update_priorities(5, [1], [1.0]), TABLE),
    "update priorities": (
        lambda c: c.update_priorities("t", [1], ["x"]),
        "priorities must be numbers, got str",
    ),
    "reset": (lambda c: c.reset(5), TABLE),
    "size": (lambda c: c.size(5), TABLE),
    "diagnose": (lambda c: c.diagnose(5), TABLE),
    "pause": (lambda c: c.pause_table(5), TABLE),
    "rate_limiter_off": (lambda c: c.rate_limiter_off(5).__enter__(), TABLE),
    "server_info": (lambda c: c.server_info("x"), integer("timeout")),
    "configure table": (lambda c: c.configure_table(5, max_size=3), TABLE),
    "configure size": (lambda c: c.configure_table("t", max_size="x"), integer("max_size")),
    "configure changes": (
        lambda c: c.configure_tables(5),
        "changes must be a mapping of tables to reverb.TableChange objects, got int",
    ),
    "drain": (lambda c: c.drain("x"), integer("timeout_ms")),
    "trajectory_writer": (
        lambda c: c.trajectory_writer(1.5),
        integer("num_keep_alive_refs", "float"),
    ),
    "sequence_writer tables": (
        lambda c: c.sequence_writer(5, 1),
        "tables must be names of tables, got int",
    ),
    "sequence_writer length": (lambda c: c.sequence_writer("t", "x"), integer("sequence_length")),
    "structured_writer": (
        lambda c: c.structured_writer(5),
        "configs must be a list of configs, got int",
    ),
    "structured_writer config": (lambda c: c.structured_writer([5]), RESULTS),
    "writer": (lambda c: c.writer(3, chunk_length="x"), integer("chunk_length")),
    "create_item table": (lambda c: item(c, 5), TABLE),
    "create_item priority": (lambda c: item(c, priority=None), number("priority", "NoneType")),
    "create_item removal": (
        lambda c: item(c, removal_priority="x"),
        number("removal_priority"),
    ),
    "create_item leaf": (
        lambda c: item(c, leaf=object()),
        'must be TrajectoryColumn objects, such as history["x"][-3:], or constants (numbers, texts '
        "or arrays), got object for leaf 'x'",
    ),
    "create_items table": (lambda c: rows(c, 5, 1.0), TABLE),
    "create_items priorities": (
        lambda c: rows(c, "t", "x"),
        "priorities must be numbers, got str",
    ),
    "legacy table": (lambda c: legacy(c, 5, 1, 1.0), TABLE),
    "legacy steps": (lambda c: legacy(c, "t", "x", 1.0), integer("num_timesteps")),
    "legacy priority": (lambda c: legacy(c, "t", 1, "x"), number("priority")),
    "flush number": (lambda c: flush(c, "x"), integer("block_until_num_items")),
    "flush time": (lambda c: flush(c, 0, "x"), integer("timeout_ms")),
    "Table name": (lambda c: table(name=5), "name must be a str, the name of a table, got int"),
    "Table sampler": (lambda c: table(sampler=selectors.Fifo), f"sampler {SELECTOR} type"),
    "Table remover": (lambda c: table(remover="fifo"), f"remover {SELECTOR} str"),
    "Table size": (lambda c: table(max_size=1e6), integer("max_size", "float")),
    "Table limiter": (lambda c: table(rate_limiter=5), LIMITER),
    "Table times": (lambda c: table(max_times_sampled="x"), integer("max_times_sampled")),
    "Table seed": (lambda c: table(seed="x"), integer("seed")),
    "MinSize": (lambda c: rate_limiters.MinSize("x"), integer("min_size_to_sample")),
    "Queue": (lambda c: rate_limiters.Queue("x"), number("size")),
    "ratio": (
        lambda c: rate_limiters.SampleToInsertRatio("x", 1, 1.0),
        number("samples_per_insert"),
    ),
    "ratio buffer": (
        lambda c: rate_limiters.SampleToInsertRatio(1.0, 1, "x"),
        "error_buffer must be a number, or min_diff and max_diff, got str",
    ),
    "Server tables": (
        lambda c: reverb.Server(reverb.Table.queue("q", 2)),
        "tables must be a list of Table objects, got Table",
    ),
    "Server port": (lambda c: server(port="x"), integer("port")),
    "Server host": (lambda c: server(host=5), "host must be a str, got int"),
    "Server checkpointer": (
        lambda c: server(checkpointer="x"),
        "checkpointer must be an object of reverb.checkpointers, got str",
    ),
    "Server interval": (
        lambda c: server(checkpoint_interval_s="x"),
        number("checkpoint_interval_s"),
    ),
    "Server keepalive": (lambda c: server(keepalive_s="x"), number("keepalive_s")),
    "Server http_port": (lambda c: server(http_port="x"), integer("http_port")),
}


@pytest.fixture(scope="module")
def client(path, reach):
    with testing.server([testing.table("t"), testing.table("table")]) as made:
        yield reach(made)


@pytest.mark.parametrize("name", CALLS)
def test_the_argument_is_named(client, name):
    call, text = CALLS[name]
    # Classes that dm-reverb's programs may catch are its own.
    kind = AttributeError if name in ATTRIBUTE_ERRORS else TypeError
    with pytest.raises(kind, match=re.escape(text)):
        call(client)
