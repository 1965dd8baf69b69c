# SPDX-License-Identifier: Apache-2.0
"""Programs of `tf.compat.v1`, and what must not start TensorFlow before the program does."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import testing

PROLOGUE = """
import sys
import numpy as np
import tensorflow as tf
import reverb
from reverb import testing

# Raises when TensorFlow's eager context was started.
def set_devices():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

signature = [tf.TensorSpec([None], tf.int64)]
tables = [testing.table(name, max_times_sampled=1) for name in ("items", "written", "sampled")]
tables.append(testing.table("signed", signature=signature, max_times_sampled=1))
server = reverb.Server(tables)
address = f"localhost:{server.port}"
client = reverb.Client(address)
"""

GRAPH_PROGRAM = """
getattr(tf.compat.v1, sys.argv[1])()
arguments = dict(dtypes=[tf.int64], max_in_flight_samples_per_worker=1, max_samples=4)
items = reverb.TrajectoryDataset(address, "items", shapes=[tf.TensorShape([None])], **arguments)
steps = reverb.TimestepDataset(
    tf.constant(address), tf.constant("items"), shapes=[tf.TensorShape([])], **arguments
)
signed = reverb.TrajectoryDataset.from_table_signature(address, "signed", 1, max_samples=2)
datasets = {
    "items": items,
    "batches of items": items.take(4).batch(2),
    "fused batches": items.batch(2).prefetch(1),
    "steps": steps.take(5),
    "fused batches of steps": steps.batch(3, drop_remainder=True),
    "signed": signed.repeat(2),
}
iterators = {
    name: tf.compat.v1.data.make_initializable_iterator(dataset)
    for name, dataset in datasets.items()
}
once = reverb.TimestepDataset(address, "items", shapes=[tf.TensorShape([])], **arguments)
once = tf.compat.v1.data.make_one_shot_iterator(once.batch(2)).get_next().data[0]
elements = {name: iterator.get_next().data[0] for name, iterator in iterators.items()}
tf_client = reverb.TFClient(address)
sampled = tf_client.sample("sampled", [tf.int64]).data[0]
one = tf.constant([1.0], tf.float64)
inserted = tf_client.insert([tf.constant(7, tf.int64)], tf.constant(["sampled"]), one)
updated = tf_client.update_priorities("sampled", tf.constant([1], tf.uint64), one)
writer = client.sequence_writer("written", sequence_length=2)
appended = reverb.TFSequenceWriter(writer).append([tf.constant(1)], is_last=False)
set_devices()

def fill(table):
    with client.trajectory_writer(2) as writer:
        for i in range(8):
            writer.append([np.int64(i)])
            if i % 2:
                writer.create_item(table, 1.0, [writer.history[0][-2:]])

with tf.compat.v1.Session() as session:
    for name, iterator in iterators.items():
        client.reset("items")
        fill("signed" if name == "signed" else "items")
        session.run(iterator.initializer)
        found = []
        try:
            while True:
                found.append(session.run(elements[name]).tolist())
        except tf.errors.OutOfRangeError:
            print(name, found)
    client.reset("items")
    fill("items")
    print("once", session.run(once).tolist())
    with testing_thread(lambda: session.run(sampled)) as waiting:
        session.run(inserted)
    print("waited for", waiting[0])
    session.run(updated)
    print("appended", session.run(appended), session.run(appended))
    writer.flush()
"""

THREAD = """
import contextlib, threading

@contextlib.contextmanager
def testing_thread(call):
    result = []
    thread = threading.Thread(target=lambda: result.append(int(call())))
    thread.start()
    thread.join(0.2)  # Longer than the op itself waits.
    assert thread.is_alive()
    yield result
    thread.join()
"""

PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7]]
EXPECTED = {
    "items": PAIRS,
    "batches of items": [PAIRS[:2], PAIRS[2:]],
    "fused batches": [PAIRS[:2], PAIRS[2:]],
    "steps": [0, 1, 2, 3, 4],
    "fused batches of steps": [[0, 1, 2], [3, 4, 5]],
    "signed": PAIRS,
    "once": [0, 1],
    "waited for": 7,
    "appended": "0 1",
}


def run(program, *arguments):
    command = [sys.executable, "-c", program, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


# The first one is a part of the second one, and each program imports TensorFlow.
@pytest.mark.parametrize(
    "switch",
    [pytest.param("disable_eager_execution", marks=pytest.mark.slow), "disable_v2_behavior"],
)
def test_a_graph_is_built_before_devices_are_set(switch):
    lines = run(PROLOGUE + THREAD + GRAPH_PROGRAM, switch)
    assert lines == [f"{name} {value}" for name, value in EXPECTED.items()]


EAGER_PROGRAM = """
import reverb.tf_ops
reverb.TrajectoryDataset, reverb.TimestepDataset, reverb.PatternDataset
tf_client = reverb.TFClient(address)
writer = reverb.TFSequenceWriter(client.sequence_writer("written", sequence_length=2))
set_devices()
client.insert([np.int64(3)], {"sampled": 1.0})
print(int(tf_client.sample("sampled", [tf.int64]).data[0]), len(tf.config.list_logical_devices()))
"""


def test_clients_are_made_before_devices_are_set():
    assert run(PROLOGUE + EAGER_PROGRAM) == ["3 2"]


def test_a_graph_with_a_dataset_can_be_saved_and_loaded(serve):
    client = serve(testing.table(max_times_sampled=1))
    with tf.Graph().as_default() as graph:
        dataset = reverb.TimestepDataset(
            client.server_address, "table", [tf.int64], [tf.TensorShape([])], 1, max_samples=2
        )
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset.batch(2))
        names = [iterator.initializer.name, iterator.get_next().data[0].name]
    definition = graph.as_graph_def()
    client.insert([np.int64(1)], {"table": 1.0})
    client.insert([np.int64(2)], {"table": 1.0})
    with tf.Graph().as_default():
        initializer, element = tf.graph_util.import_graph_def(definition, return_elements=names)
        with tf.compat.v1.Session() as session:
            session.run(initializer)
            assert session.run(element).tolist() == [1, 2]
