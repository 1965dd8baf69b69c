# SPDX-License-Identifier: Apache-2.0
"""Writes the graphs of this folder: `PYTHONPATH=. python THIS_FILE`, with TensorFlow 2.15.

They are kept as the release before windows wrote them, and are not written again: programs that
saved such graphs load them with newer releases. ADDRESS stands for the address of a server.
"""

import pathlib

import tensorflow as tf

import reverb

FOLDER = pathlib.Path(__file__).parent
ADDRESS = "ADDRESS"


def dataset(address, **options):
    """Items `[T, 2]` of a table `table`, and a value of each."""
    return reverb.TrajectoryDataset(
        address,
        "table",
        {"steps": tf.float32, "value": tf.int64},
        {"steps": tf.TensorShape([None, 2]), "value": tf.TensorShape([])},
        max_in_flight_samples_per_worker=2,
        **options,
    )


class Reader(tf.Module):
    """A module for a saved model."""

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def sum_of_four(self, address):
        """The sum of the values of four items, and of all their steps."""
        values, steps = tf.constant(0, tf.int64), tf.zeros([])
        for sample in dataset(address, max_samples=4).batch(2):
            values += tf.reduce_sum(sample.data["value"])
            steps += tf.reduce_sum(sample.data["steps"])
        return {"values": values, "steps": steps}


def main():
    """Writes a saved model, a dataset, and a graph of a program without eager execution."""
    tf.saved_model.save(Reader(), str(FOLDER / "saved_model"))
    variant = tf.data.experimental.to_variant(dataset(ADDRESS, max_samples=3))
    (FOLDER / "dataset.pb").write_bytes(tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy())
    with tf.Graph().as_default() as graph:
        address = tf.compat.v1.placeholder(tf.string, [], "address")
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset(address))
        tf.identity(iterator.get_next().data["value"], "value")
        tf.group(iterator.initializer, name="start")
        # The ops themselves.
        ops = reverb.tf_ops.ops
        handle = ops.reverb_replay_sampler_create(
            address, "table", 0, dtypes=[tf.float32, tf.int64], shapes=[[None, 2], []]
        )
        batch = ops.reverb_replay_sampler_next(
            handle, Toutput_list=[tf.float32, tf.int64], rows=2, exact=True, wait_ms=50
        )
        tf.identity(batch.key, "keys")
        tf.identity(batch.data[1], "values")
    (FOLDER / "graph.pb").write_bytes(graph.as_graph_def().SerializeToString())


if __name__ == "__main__":
    main()
