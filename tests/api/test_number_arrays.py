# SPDX-License-Identifier: Apache-2.0
"""Numbers of any dtype at their value: those of `ml_dtypes`, and raw bytes that stand for them."""

import ml_dtypes
import numpy as np
import pytest

import reverb
from reverb import testing
from reverb._checks.number_arrays import as_array, as_numbers
from support.dtypes import EXTENSIONS


def raw_and_known(name):
    """All bit patterns of a dtype, as raw bytes and as the package knows them."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    count = 16 if name.endswith("int4") else 256**dtype.itemsize
    bits = np.arange(count).astype(np.uint16 if dtype.itemsize == 2 else np.uint8)
    raw = bits.view(np.dtype(f"V{dtype.itemsize}", metadata={"reverb_dtype": name}))
    return raw, bits.view(dtype)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # A warning of ml_dtypes.
@pytest.mark.parametrize("name", EXTENSIONS)
def test_raw_bytes_are_the_numbers_that_they_stand_for(name):
    raw, known = raw_and_known(name)
    numbers = as_numbers("priorities", raw)
    assert numbers.dtype == np.float64
    np.testing.assert_array_equal(numbers, known.astype(np.float64))
    np.testing.assert_array_equal(as_numbers("priorities", known), numbers)
    np.testing.assert_array_equal(as_numbers("priorities", list(known[:4])), numbers[:4])
    assert as_array("priority", known[1]).dtype.kind == "f"


def test_raw_bytes_of_nothing_known_are_refused():
    with pytest.raises(TypeError, match=r"priorities must be numbers, got an array of \|V2"):
        as_numbers("priorities", np.zeros(3, "V2"))


def test_the_largest_priority_stays_what_it_is():
    for value in (reverb.MAX_PRIORITY, [reverb.MAX_PRIORITY], np.full(1, reverb.MAX_PRIORITY)):
        bits = as_numbers("priorities", value).view(np.uint64)
        assert (bits == np.float64(reverb.MAX_PRIORITY).view(np.uint64)).all()


@pytest.mark.parametrize("name", [*EXTENSIONS, "float8_e4m3b11fnuz", "float8_e5m2fnuz"])
def test_priorities_of_the_dtypes_of_the_package(serve, name):
    client = serve(testing.table("t"))
    dtype = getattr(ml_dtypes, name)
    client.insert_batch([np.zeros(3)], {"t": np.array([1, 2, 4], dtype)})
    client.insert([0.0], {"t": dtype(6)})
    assert [sample.info.priority for sample in client.scan("t")] == [1.0, 2.0, 4.0, 6.0]
    keys = [sample.info.key for sample in client.scan("t")]
    client.update_priorities("t", keys, np.full(4, 3).astype(dtype))
    assert {sample.info.priority for sample in client.scan("t")} == {3.0}
