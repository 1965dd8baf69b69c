# SPDX-License-Identifier: Apache-2.0
"""The examples in the docstrings of the TensorFlow part run as they stand."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import testing


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module in pkgutil.iter_modules(reverb.tf_ops.__path__, "reverb.tf_ops."):
        if module.name.endswith("._reverb_ops"):
            continue  # It is there for TensorFlow.
        for test in finder.find(importlib.import_module(module.name), module.name):
            if test.examples and test.globs["__name__"] == module.name:
                yield pytest.param(test, id=test.name)


@pytest.mark.parametrize("test", list(examples()))
def test_example(test):
    tables = [testing.table("table"), testing.table("replay")]
    with testing.server(tables) as client:
        client.insert([np.zeros(4), 1.0], {"table": 1.0})
        with client.trajectory_writer(3) as writer:
            for step in range(3):
                writer.append({"observation": np.zeros(4, np.float32), "action": step})
            columns = {key: writer.history[key][-3:] for key in ("observation", "action")}
            writer.create_item("replay", 1.0, columns)
            writer.flush()
        test.globs = {
            **test.globs,
            "client": client,
            "learn": lambda *_: None,
            "print": lambda *_: None,
            "reverb": reverb,
            "tf": tf,
        }
        output = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=output.append)
    assert not "".join(output)


def test_every_public_class_has_an_example():
    names = {parameter.id.rpartition(".")[2] for parameter in examples()}
    assert names >= {"PatternDataset", "TFClient", "TimestepDataset", "TrajectoryDataset"}
