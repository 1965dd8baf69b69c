# SPDX-License-Identifier: Apache-2.0
"""The examples in the docstrings run as they stand."""

import doctest
import importlib
import pkgutil
import re
import types

import numpy as np
import pytest

import reverb
from reverb import testing

# These need TensorFlow; tests/with_tensorflow runs their examples.
TENSORFLOW = r"reverb\.(tf_|trajectory_dataset|timestep_dataset|pattern_dataset)"
MODULES = [
    "reverb",
    *sorted(
        module.name
        for module in pkgutil.walk_packages(reverb.__path__, "reverb.")
        if not module.name.endswith("._native") and not re.match(TENSORFLOW, module.name)
    ),
]


def modules():
    for name in MODULES:
        try:
            yield name, importlib.import_module(name)
        except ModuleNotFoundError as error:
            # The tests beside its library run the examples of an adapter.
            if not name.startswith("reverb.adapters.") or (error.name or "").startswith("reverb"):
                raise


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name, module in modules():
        for test in finder.find(module, name):
            if test.examples and test.globs["__name__"] == name:
                yield pytest.param(test, id=test.name)


def rollout_table():
    spec = reverb.specs.TensorSpec
    signature = {
        "prompt": spec([None], np.int32),
        "tokens": spec([None], np.int32),
        "score": spec([], np.float32),
    }
    return reverb.Table.rollouts("rollouts", 2, signature)


@pytest.mark.parametrize("test", list(examples()))
def test_example(test):
    has_rollouts = re.search("rollout|OpenItem|insert_item", test.name, re.IGNORECASE)
    more = [rollout_table()] if has_rollouts else []
    with testing.server([testing.table("table"), testing.table("replay"), *more]) as client:
        test.globs = {**test.globs, "client": client, "np": np, "reverb": reverb}
        # An example that asks for a sample finds one.
        client.insert([np.zeros(4), 1.0], {"table": 1.0})
        if has_rollouts:
            client.insert_item("rollouts", {"prompt": [1, 2]}, name="first")
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        output = []
        runner.run(test, out=output.append)
    assert not "".join(output)


def test_every_public_class_has_an_example():
    documented = {parameter.id.rpartition(".")[2] for parameter in examples()}
    modules = [reverb, reverb.rate_limiters, reverb.specs, reverb.checkpointers]
    classes = {
        name
        for module in modules
        for name in module.__all__
        # Python 3.10 takes an alias such as `tuple[int, ...]` for a class.
        if isinstance(getattr(module, name), type)
        and not isinstance(getattr(module, name), types.GenericAlias)
    }
    # Compiled; the example of `TrajectoryWriter` shows it.
    assert classes - {"TrajectoryColumn"} <= documented
