# SPDX-License-Identifier: Apache-2.0
"""Specs: what they accept, and how nests of them travel."""

import collections
import copy
import pickle
import sys
import types

import dm_env.specs
import ml_dtypes
import numpy as np
import pytest
import tree

from reverb import specs
from reverb._nests import dtypes, structured_value
from reverb.core import protos
from reverb.errors import DataLossError, InvalidArgumentError
from reverb.specs import BoundedTensorSpec, TensorSpec


def round_trip(nest):
    message = structured_value.encode(nest)
    return structured_value.decode(protos.StructuredValue.FromString(message.SerializeToString()))


class TestTensorSpec:
    def test_shape_dtype_and_name_are_normalised(self):
        spec = TensorSpec([None, np.int64(3)], "int32", name="x")
        assert spec.shape == (None, 3)
        assert spec.dtype == np.dtype(np.int32)
        assert spec.name == "x"

    def test_an_unknown_rank_is_none(self):
        assert TensorSpec(None, np.float32).shape is None

    def test_repr_can_be_read(self):
        assert repr(TensorSpec([None, 2], np.uint8, "pixels")) == (
            "TensorSpec(shape=(None, 2), dtype=uint8, name='pixels')"
        )

    @pytest.mark.parametrize(
        "other",
        [
            TensorSpec([2], np.float32, "x"),
            TensorSpec([None], np.float64, "x"),
            TensorSpec([None], np.float32),
            TensorSpec(None, np.float32, "x"),
            BoundedTensorSpec([None], np.float32, 0, 1, "x"),
            "TensorSpec",
        ],
    )
    def test_any_difference_makes_specs_unequal(self, other):
        assert TensorSpec([None], np.float32, "x") != other

    def test_equal_specs_have_equal_hashes(self):
        first, second = TensorSpec([3], np.int8, "a"), TensorSpec((3,), "int8", "a")
        assert first == second
        assert hash(first) == hash(second)

    @pytest.mark.parametrize(
        "spec",
        [
            TensorSpec([None, 2], np.float32, "x"),
            TensorSpec(None, np.str_),
            BoundedTensorSpec([2], np.int32, [0, 1], 5, "b"),
        ],
    )
    def test_pickle_and_copy_keep_a_spec(self, spec):
        assert pickle.loads(pickle.dumps(spec)) == spec
        assert copy.deepcopy(spec) == spec

    def test_replace_changes_one_attribute(self):
        spec = BoundedTensorSpec([2], np.int32, 0, 5, "b").replace(name="c")
        assert spec == BoundedTensorSpec([2], np.int32, 0, 5, "c")

    def test_bounds_take_part_in_equality(self):
        assert BoundedTensorSpec([2], np.int32, 0, 5) != BoundedTensorSpec([2], np.int32, 0, 6)

    def test_a_negative_dimension_is_refused(self):
        with pytest.raises(InvalidArgumentError, match=r"at least 0 or None, got shape \(-1,\)"):
            TensorSpec([-1], np.float32)

    def test_a_spec_is_a_leaf(self):
        nest = {"a": TensorSpec([1], np.float32), "b": [TensorSpec([], np.int32)]}
        assert len(tree.flatten(nest)) == 2


class Shaped:
    """An object of nobody's library that happens to have a shape and a dtype."""

    def __init__(self, shape, dtype, **attributes):
        self.shape = shape
        self.dtype = dtype
        self.__dict__.update(attributes)


class FakeTensorFlowShape:
    def __init__(self, dims):
        self.rank = None if dims is None else len(dims)
        self._dims = dims

    def as_list(self):
        if self._dims is None:
            raise ValueError("as_list() is not defined on an unknown TensorShape.")
        return list(self._dims)


class TestAsSpec:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (np.zeros((2, 3), np.uint8), TensorSpec([2, 3], np.uint8)),
            (np.float32(1), TensorSpec([], np.float32)),
            (np.float32, TensorSpec([], np.float32)),
            (np.dtype("int16"), TensorSpec([], np.int16)),
            (1, TensorSpec([], np.int64)),
            (1.0, TensorSpec([], np.float64)),
            (True, TensorSpec([], np.bool_)),
            ("text", TensorSpec([], object)),
            (np.asarray(["a", "b"]), TensorSpec([2], object)),
            (dm_env.specs.Array((4,), np.float32, "obs"), TensorSpec([4], np.float32, "obs")),
            (
                dm_env.specs.BoundedArray((2,), np.float32, -1, 1, "act"),
                BoundedTensorSpec([2], np.float32, -1, 1, "act"),
            ),
            (dm_env.specs.DiscreteArray(3), BoundedTensorSpec([], np.int32, 0, 2)),
            (Shaped([None, 2], "float32"), TensorSpec([None, 2], np.float32)),
            (
                Shaped(FakeTensorFlowShape([None]), Shaped(None, None, as_datatype_enum=9)),
                TensorSpec([None], np.int64),
            ),
            (Shaped(FakeTensorFlowShape(None), np.int32), TensorSpec(None, np.int32)),
        ],
        ids=lambda value: repr(value)[:40],
    )
    def test_anything_with_shape_and_dtype_is_a_spec(self, value, expected):
        spec = specs.as_spec(value)
        if isinstance(expected, BoundedTensorSpec):  # dm_env broadcasts the bounds.
            shape = expected.minimum.shape
            spec = spec.replace(minimum=spec.minimum.flat[0], maximum=spec.maximum.flat[0])
            assert spec.minimum.shape == shape
        assert spec == expected

    @pytest.mark.parametrize("value", [object(), [1, 2], None, {"a": 1}])
    def test_other_objects_are_refused(self, value):
        with pytest.raises(InvalidArgumentError, match="must have a shape and a dtype, got"):
            specs.as_spec(value)

    @pytest.mark.parametrize("dtype", ["datetime64[s]", "timedelta64[s]", [("a", "i4")]])
    def test_a_dtype_that_cannot_be_stored_is_refused(self, dtype):
        with pytest.raises(InvalidArgumentError, match="can be stored"):
            specs.as_spec(np.zeros(2, dtype))


class TestDtypes:
    def test_numbers_and_dtypes_name_each_other(self):
        for number in (*range(1, 20), 22, 23, 24, 25, 29, 30):
            assert dtypes.to_number(dtypes.from_number(number)) == number

    def test_a_framework_dtype_is_known_by_its_name(self):
        class TorchDtype:
            def __str__(self):
                return "torch.float16"

        assert dtypes.as_dtype(TorchDtype()) == np.float16


Point = collections.namedtuple("Point", ["x", "y"])


class TestStructuredValue:
    @pytest.mark.parametrize(
        "nest",
        [
            TensorSpec([None, 2], np.float32, "x"),
            TensorSpec(None, np.int64),
            TensorSpec([0], np.str_),
            {"b": TensorSpec([], np.int8), "a": {"c": TensorSpec([1], np.bool_)}},
            [TensorSpec([], np.int8), (TensorSpec([], np.float16), [])],
            {"empty": (), "also": {}, "x": TensorSpec([2], np.complex64)},
            None,
        ],
        ids=repr,
    )
    def test_a_nest_comes_back(self, nest):
        assert round_trip(nest) == nest

    def test_lists_stay_lists_and_tuples_tuples(self):
        spec = TensorSpec([], np.float32)
        assert [type(value) for value in round_trip([[spec], (spec,)])] == [list, tuple]

    def test_a_named_tuple_returns_as_a_new_class_of_its_fields(self):
        decoded = round_trip(Point(TensorSpec([], np.int8), y=[TensorSpec([1], np.int16)]))
        assert type(decoded).__name__ == "Point"
        assert type(decoded) is not Point
        assert decoded._fields == ("x", "y")
        assert decoded.x == TensorSpec([], np.int8)
        assert decoded.y == [TensorSpec([1], np.int16)]

    @pytest.mark.parametrize(
        "spec",
        [
            BoundedTensorSpec([2], np.int32, [0, -1], 5, "b"),
            BoundedTensorSpec([], np.float16, -1.5, 1.5),
            BoundedTensorSpec([None, 2], np.float32, -np.inf, np.inf),
            BoundedTensorSpec([3], np.uint8, 0, 255),
        ],
        ids=repr,
    )
    def test_bounds_come_back(self, spec):
        decoded = round_trip(spec)
        assert decoded == spec
        assert decoded.minimum.dtype == spec.dtype

    def test_other_mappings_come_back_as_dicts(self):
        nest = collections.OrderedDict(b=TensorSpec([], np.int8), a=TensorSpec([], np.int16))
        assert type(round_trip(nest)) is dict
        assert round_trip(nest) == dict(nest)

    def test_any_shaped_object_is_encoded(self):
        assert round_trip({"x": np.zeros((3,), np.int32)}) == {"x": TensorSpec([3], np.int32)}

    def test_a_leaf_that_is_no_spec_is_named(self):
        with pytest.raises(
            InvalidArgumentError, match=r"leaf \('a', 1\) of the signature must be a spec.*object"
        ):
            structured_value.encode({"a": [TensorSpec([], np.int8), object()]})

    def test_a_key_must_be_a_string(self):
        with pytest.raises(InvalidArgumentError, match="must be strings, got 1"):
            structured_value.encode({1: TensorSpec([], np.int8)})

    def test_bounds_written_value_by_value_are_understood(self):
        # TensorFlow writes single numbers into typed fields and drops trailing repetitions.
        message = protos.StructuredValue()
        spec = message.bounded_tensor_spec_value
        spec.dtype = spec.minimum.dtype = spec.maximum.dtype = 1
        spec.shape.dim.add(size=3)
        spec.minimum.tensor_shape.dim.add(size=3)
        spec.minimum.float_val.extend([1.0, 2.0])
        spec.maximum.float_val.append(7.0)
        decoded = structured_value.decode(message)
        np.testing.assert_array_equal(decoded.minimum, np.asarray([1, 2, 2], np.float32))
        np.testing.assert_array_equal(decoded.maximum, np.float32(7))

    @pytest.mark.parametrize(
        ("number", "field", "values", "expected"),
        [
            (19, "half_val", [0x3C00], np.float16(1)),
            (14, "half_val", [0xBF80], ml_dtypes.bfloat16(-1)),
            (24, "float8_val", b"\x3c", ml_dtypes.float8_e5m2(1)),
            (25, "float8_val", b"\xb8", ml_dtypes.float8_e4m3fn(-1)),
            (29, "int_val", [-8], ml_dtypes.int4(-8)),
            (30, "int_val", [15], ml_dtypes.uint4(15)),
            (8, "scomplex_val", [1.0, 2.0], np.complex64(1 + 2j)),
            (6, "int_val", [-3], np.int8(-3)),
            (10, "bool_val", [True], np.bool_(True)),
            (23, "uint64_val", [2**64 - 1], np.uint64(2**64 - 1)),
            (7, "string_val", [b"a"], np.asarray(b"a", object)),
        ],
    )
    def test_bounds_of_every_kind_of_field_are_read(self, number, field, values, expected):
        message = protos.StructuredValue()
        spec = message.bounded_tensor_spec_value
        spec.dtype = spec.minimum.dtype = spec.maximum.dtype = number
        bound = type(spec.minimum)(**{field: values})
        spec.minimum.MergeFrom(bound)
        spec.maximum.MergeFrom(bound)
        decoded = structured_value.decode(message)
        assert decoded.minimum == expected
        assert decoded.minimum.dtype == expected.dtype

    def test_a_value_that_is_no_spec_is_refused(self):
        with pytest.raises(DataLossError, match="kind float64_value"):
            structured_value.decode(protos.StructuredValue(float64_value=1.0))

    def test_an_unknown_dtype_is_refused(self):
        message = protos.StructuredValue()
        message.tensor_spec_value.dtype = 20
        with pytest.raises(DataLossError, match="unknown dtype number 20"):
            structured_value.decode(message)


class TestTensorFlowLeaves:
    @pytest.fixture
    def tensorflow(self, monkeypatch):
        """As much of TensorFlow as decoding touches, as if the program had imported it."""
        module = types.ModuleType("tensorflow")
        module.TensorSpec = collections.namedtuple("TensorSpec", ["shape", "dtype", "name"])
        module.as_dtype = lambda number: f"dtype {number}"
        tensor_spec = types.ModuleType("tensorflow.python.framework.tensor_spec")
        tensor_spec.BoundedTensorSpec = collections.namedtuple(
            "BoundedTensorSpec", ["shape", "dtype", "minimum", "maximum", "name"]
        )
        monkeypatch.setitem(sys.modules, "tensorflow", module)
        monkeypatch.setitem(sys.modules, tensor_spec.__name__, tensor_spec)
        return module

    def test_leaves_are_tensorflows_once_it_is_imported(self, tensorflow):
        decoded = round_trip([TensorSpec([None], np.float32, "x")])
        assert decoded == [tensorflow.TensorSpec((None,), "dtype 1", "x")]

    def test_bounded_leaves_too(self, tensorflow):
        decoded = round_trip(BoundedTensorSpec([], np.int32, 1, 2, "b"))
        assert type(decoded).__name__ == "BoundedTensorSpec"
        assert decoded == ((), "dtype 3", np.int32(1), np.int32(2), "b")

    def test_a_half_imported_tensorflow_is_left_alone(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))
        assert round_trip(TensorSpec([], np.int8)) == TensorSpec([], np.int8)
