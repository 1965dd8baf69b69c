# SPDX-License-Identifier: Apache-2.0
"""Servers that are missing, stop or come back; iterators that are dropped; interrupts and exits."""

import contextlib
import gc
import signal
import socket
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import cancellation

import reverb
from reverb import testing
from support.hosts import HOSTS
from support.programs import Program
from support.waiting import PATIENCE
from support.wire.refusing_server import RefusingServer

# From dropping an iterator, or from a signal, to its effect; next to nothing unless the machine is
# busy.
LIMIT_S = 5.0 * PATIENCE


@pytest.fixture
def free_port():
    """A port at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@pytest.mark.parametrize("batch_size", [None, 2])
def test_an_unknown_table_is_not_found(serve, ints, batch_size):
    client = serve(testing.table("other"))
    dataset = ints(client, "nope", batch_size=batch_size)
    for it in (dataset, dataset.map(lambda sample: sample), dataset.prefetch(1)):
        with pytest.raises(tf.errors.NotFoundError, match=r"nope.*other"):
            next(iter(it))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, tf.errors.PermissionDeniedError),
        (grpc.StatusCode.UNAUTHENTICATED, tf.errors.UnauthenticatedError),
    ],
)
def test_a_server_that_refuses_is_no_missing_one(ints, code, kind):
    with RefusingServer(code, "ask the owner") as address:
        client = reverb.Client(address)
        dataset = ints(client, "table")
        tf_client = reverb.TFClient(address)
        keys, priorities = tf.constant([1], tf.uint64), tf.constant([1.0], tf.float64)
        calls = [
            lambda: next(iter(dataset)),
            lambda: next(iter(dataset.prefetch(1))),
            lambda: tf_client.sample("table", [tf.int64]),
            lambda: tf_client.insert([tf.constant(1)], ["table"], np.ones(1)),
            lambda: tf_client.update_priorities("table", keys, priorities),
            tf.function(lambda: tf_client.sample("table", [tf.int64]).data),
        ]
        for call in calls:
            with pytest.raises(kind, match="ask the owner"):
                call()


def test_an_error_repeats_itself(serve, ints):
    iterator = iter(ints(serve(testing.table("other")), "nope"))
    for _ in range(3):
        with pytest.raises(tf.errors.NotFoundError):
            next(iterator)


def test_a_server_that_comes_later_is_waited_for(start, ints, fill, values, background, free_port):
    client = reverb.Client(f"127.0.0.1:{free_port}")
    dataset = ints(client, max_samples=3)
    call = background(lambda: values(dataset))
    start(testing.table(max_times_sampled=1), port=free_port)
    fill(client, 3)
    assert call.result() == [0, 1, 2]


def test_a_server_that_comes_back_is_found(start, connect, ints, fill, values, background):
    with reverb.Server([testing.table(max_times_sampled=1)]) as server:
        port = server.port
        client = connect(server)
        fill(client, 2)
        iterator = iter(ints(client))
        assert values(next(iterator) for _ in range(2)) == [0, 1]
        call = background(next, iterator)
    start(testing.table(max_times_sampled=1), port=port)
    fill(client, 2, first=2)
    assert values([call.result(), next(iterator)]) == [2, 3]


def is_awaited(table):
    """Whether somebody waits for items of a table, which is what makes this time grow."""
    before = table.info.table_worker_time.waiting_for_inserts_ms
    time.sleep(0.05)
    return table.info.table_worker_time.waiting_for_inserts_ms > before


def gone(table, client):
    """Whether nobody takes items from a table any more."""
    client.insert([np.int64(-1)], {"table": 1.0})
    time.sleep(0.2)
    return table.info.current_size == 1


@pytest.mark.parametrize("kind", ["started", "waiting", "never used", "fused"])
def test_a_dropped_iterator_frees_its_sampler(start, connect, ints, fill, until, kind):
    table = testing.table(max_times_sampled=1)
    client = connect(start(table))
    dataset = ints(client, batch_size=2 if kind == "fused" else None)
    iterator = iter(dataset)
    if kind in ("started", "fused"):
        fill(client, 4)
        next(iterator)
    if kind == "waiting":
        iterator = iter(dataset.prefetch(1))
        time.sleep(0.2)
    del iterator
    gc.collect()
    until(lambda: not is_awaited(table))
    client.reset("table")
    assert gone(table, client)


def test_samplers_of_other_iterators_remain(serve, ints, fill, values):
    client = serve(testing.table(max_times_sampled=1))
    dataset = ints(client)
    iterators = [iter(dataset) for _ in range(4)]
    del iterators[1:3]
    fill(client, 8)
    time.sleep(0.2)
    found = values(next(iterator) for iterator in iterators for _ in range(2))
    assert len(set(found)) == 4


def test_a_failed_iter_leaves_no_sampler(start, connect):
    table = testing.table(max_times_sampled=1, signature=[tf.TensorSpec([], tf.int64)])
    client = connect(start(table))
    dataset = reverb.TrajectoryDataset(
        client.server_address, "table", [tf.float32], [tf.TensorShape([1])], 1
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        iter(dataset)
    assert gone(table, client)


def test_hundreds_of_iterators_come_and_go(serve, ints, fill, values):
    client = serve(testing.table())
    fill(client, 1)
    dataset = ints(client)
    for _ in range(200):
        assert values([next(iter(dataset))]) == [0]


def test_a_cancelled_function_lets_go(serve, ints, background, until):
    client = serve(testing.table())
    cancel = cancellation.CancellationManager()

    @tf.function
    def read():
        result = tf.constant(0, tf.int64)
        for sample in ints(client):
            result += sample.data[0][0]
        return result

    concrete = cancel.get_cancelable_function(read.get_concrete_function())
    call = background(concrete)
    until(lambda: client.status().tables["table"].sampling.waiting > 0)
    cancel.start_cancel()
    with pytest.raises(tf.errors.CancelledError):
        call.result()


SOURCE = """
import sys, threading
import tensorflow as tf
import reverb
from reverb import testing

host, silence = sys.argv[1:]
server = reverb.Server([testing.table(), reverb.Table.queue("full", 1)])
address = f"{host}:{server.port}"
reverb.Client(address).insert([1.0], {"full": 1.0})
tf_client = reverb.TFClient(address)

def dataset(address=address):
    return reverb.TrajectoryDataset(address, "table", [tf.int64], [tf.TensorShape([1])], 1)

def tell(text):
    print(text, flush=True)
"""


@pytest.fixture
def program(path):
    """Starts a program: `with program(source) as running`."""
    with contextlib.ExitStack() as stack:
        silence = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = f"127.0.0.1:{silence.getsockname()[1]}"

        def program(source):
            arguments = (HOSTS[path], address)
            return stack.enter_context(Program(SOURCE + source, *arguments))

        yield program


# What waits or is left when a program ends, all of it in one program.
LEFT_OVERS = """
prefetching = iter(dataset().prefetch(1))
read_in_a_thread = iter(dataset())
threading.Thread(target=lambda: next(read_in_a_thread), daemon=True).start()
unused = iter(dataset())
interleaved = iter(tf.data.Dataset.range(4).interleave(
    lambda _: dataset(), cycle_length=4, num_parallel_calls=4).prefetch(1))

@tf.function
def sample():
    return tf_client.sample("table", [tf.int64]).data[0]

threading.Thread(target=sample, daemon=True).start()
import time; time.sleep(1.0)
tell("leaving")
"""


def test_a_waiting_program_exits(program):
    running = program(LEFT_OVERS)
    assert running.line() == "leaving"
    assert running.ended(timeout_s=10.0) == 0, running.errors


CALLS = {
    "iter, silent server": "iter(dataset(silence))",
    "TFClient.sample": "tf_client.sample('table', [tf.int64])",
    "TFClient.sample, silent server": "reverb.TFClient(silence).sample('table', [tf.int64])",
    "TFClient.insert": (
        "tf_client.insert([tf.constant(1.0, tf.float64)], tf.constant(['full']), "
        "tf.constant([1.0], tf.float64))"
    ),
    "TFClient.update_priorities, silent server": (
        "reverb.TFClient(silence).update_priorities('table', [1], [1.0])"
    ),
}


# A program imports TensorFlow for seconds, so one makes all calls, one after another.
INTERRUPTED = """
tf.constant(1) + 1
for call in sys.stdin:
    threading.Timer(1.0, lambda: tell("calling")).start()
    try:
        eval(call)
        tell("returned")
    except KeyboardInterrupt:
        tell("interrupted")
"""


def test_ctrl_c_ends_each_call(program):
    running = program(INTERRUPTED)
    for name, call in CALLS.items():
        running.tell(call)
        assert running.line() == "calling", name
        began = time.monotonic()
        running.signal(signal.SIGINT)
        assert running.line() == "interrupted", name
        assert time.monotonic() - began < LIMIT_S, name
