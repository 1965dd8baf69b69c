# SPDX-License-Identifier: Apache-2.0
"""The classes of errors: both their parents, and pickling them."""

import inspect
import pathlib
import pickle
import re

import numpy as np
import pytest

import reverb
from reverb import errors, testing

ROOT = pathlib.Path(__file__).parents[2]

PARENTS = {
    "CancelledError": RuntimeError,
    "DataLossError": RuntimeError,
    "DeadlineExceededError": RuntimeError,
    "FailedPreconditionError": RuntimeError,
    "InternalError": RuntimeError,
    "InvalidArgumentError": ValueError,
    "PermissionDeniedError": RuntimeError,
    "ResourceExhaustedError": IndexError,
    "SignatureMismatchError": ValueError,
    "TableNotFoundError": RuntimeError,
    "UnauthenticatedError": RuntimeError,
    "UnavailableError": RuntimeError,
    "UnimplementedError": NotImplementedError,
}


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_a_reverb_error(name):
    assert issubclass(getattr(errors, name), errors.ReverbError)


@pytest.mark.parametrize(("name", "parent"), PARENTS.items())
def test_existing_except_clauses_still_catch(name, parent):
    assert issubclass(getattr(errors, name), parent)


def test_the_table_above_is_complete():
    assert set(PARENTS) | {"ReverbError"} == set(errors.__all__)


def test_the_core_raises_all_of_them():
    source = (ROOT / "reverb/core/bindings/src/error.rs").read_text()
    raised = re.findall(r"import_exception!\(reverb\.errors, (\w+)\);", source)
    assert set(raised) == set(PARENTS)


def test_a_missing_table_is_what_writers_and_servers_raised():
    # The original: ValueError from a writer, RuntimeError from the server.
    assert issubclass(errors.TableNotFoundError, ValueError)


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_can_be_sent_to_other_processes(name):
    error = pickle.loads(pickle.dumps(getattr(errors, name)("what happened")))
    assert type(error).__name__ == name
    assert str(error) == "what happened"


def test_the_two_old_names_are_at_the_top():
    assert reverb.ReverbError is errors.ReverbError
    assert reverb.DeadlineExceededError is errors.DeadlineExceededError


# Classes that the docstring of `reverb.errors` lists for mistakes in arguments.
OF_MISTAKES = (errors.ReverbError, AttributeError, OverflowError, TypeError, ValueError)
MISTAKES = (object(), -1, 10**30, "\ud800", np.ones(3), {"t": float("nan")})
# Arguments that a call needs beside a wrong one.
NEEDED = {
    "table": "t",
    "batch_size": 1,
    "configs": [],
    "data": [1.0],
    "keys": [1],
    "max_sequence_length": 1,
    "num_keep_alive_refs": 1,
    "priorities": {"t": 1.0},
    "sequence_length": 1,
    "changes": {},
}


@pytest.fixture
def client():
    with testing.server([testing.table("t")]) as client:
        client.insert([1.0], {"t": 1.0})
        yield client


@pytest.mark.parametrize("value", MISTAKES, ids=lambda it: type(it).__name__)
def test_mistakes_raise_the_errors_that_the_reference_lists(client, value):
    for name, method in inspect.getmembers(reverb.Client, inspect.isfunction):
        if name.startswith("_") or name in ("batches", "close", "drain"):
            continue
        parameters = inspect.signature(method).parameters
        for wrong in list(parameters)[1:]:
            needed = {it: NEEDED[it] for it in NEEDED if it in parameters}
            options = {"timeout_ms": 1} if "timeout_ms" in parameters else {}
            try:
                made = getattr(client, name)(**{**needed, **options, wrong: value})
                if inspect.isgenerator(made):
                    next(made, None)
            except OF_MISTAKES:
                pass


def test_a_leaf_that_is_no_spec_has_a_public_class():
    with pytest.raises(errors.InvalidArgumentError) as raised:
        testing.table("t", signature=object())
    assert type(raised.value) is errors.InvalidArgumentError


OF_ONE_PROCESS = {
    "Table": (lambda client: testing.table("u"), "send a function that makes it"),
    "Server": (lambda client: reverb.Server([testing.table("u")]), "send its address"),
    "RateLimiter": (lambda client: reverb.rate_limiters.MinSize(1), "send its arguments"),
    "TrajectoryWriter": (lambda client: client.trajectory_writer(1), "in each process, of a Cl"),
    "SequenceWriter": (lambda client: client.sequence_writer("t", 1), "in each process, of a Cl"),
    "BatchIterator": (lambda client: client.batches("t", 1), "in each process, of a Client"),
}


@pytest.mark.parametrize("name", OF_ONE_PROCESS)
def test_what_cannot_be_pickled_says_what_to_do(client, name):
    make, advice = OF_ONE_PROCESS[name]
    made = make(client)
    with pytest.raises(TypeError, match=f"cannot be pickled or copied: .*{advice}"):
        pickle.dumps([made])
    getattr(made, "close", lambda: None)()
