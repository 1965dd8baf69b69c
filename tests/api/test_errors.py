# SPDX-License-Identifier: Apache-2.0
"""The classes of errors: both their parents, and pickling them."""

import pathlib
import pickle
import re

import pytest

import reverb
from reverb import errors

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
