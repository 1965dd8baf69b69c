# SPDX-License-Identifier: Apache-2.0
"""Patterns, conditions and priorities as the messages that a structured writer reads."""

import collections

import dm_env.specs
import numpy as np
import pytest

from reverb import structured
from reverb.core import protos
from reverb.errors import InvalidArgumentError
from reverb.specs import TensorSpec

Condition = structured.Condition
STEP = {"a": None, "b": [None, None]}


def node(index, **fields):
    return protos.PatternNode(flat_source_index=index, **fields)


def condition(**fields):
    return protos.Condition(**fields)


def config(transform, step=STEP, table="table", **options):
    pattern = structured.pattern_from_transform(step, transform)
    return structured.create_config(pattern, table, **options)


class TestReferenceStep:
    def test_leaves_are_numbered_in_flat_order(self):
        step = structured.create_reference_step({"b": [None, None], "a": None})
        assert step["a"][-1] == node(0, stop=-1)
        assert step["b"][1][-1] == node(2, stop=-1)

    def test_a_step_may_be_a_single_value(self):
        assert structured.create_reference_step(np.zeros(3))[-2:] == node(0, start=-2)

    @pytest.mark.parametrize(
        ("index", "fields"),
        [
            (-1, {"stop": -1}),
            (slice(-3, None), {"start": -3}),
            (slice(-3, -1), {"start": -3, "stop": -1}),
            (slice(-5, None, 2), {"start": -5, "step": 2}),
            (slice(None, -2), {"stop": -2}),
            (slice(None, None), {}),
            (0, {"stop": 0}),
        ],
    )
    def test_an_index_becomes_a_node(self, index, fields):
        assert structured.create_reference_step(None)[index] == node(0, **fields)

    @pytest.mark.parametrize("index", [np.int64(-1), (1, 2), None, "a", [0]])
    def test_other_indices_are_refused(self, index):
        with pytest.raises(InvalidArgumentError, match="takes an int or a slice, got"):
            structured.create_reference_step(None)[index]

    def test_a_column_cannot_be_iterated(self):
        with pytest.raises(TypeError):
            list(structured.create_reference_step(None))


Pair = collections.namedtuple("Pair", ["first", "second"])


class TestConfig:
    def test_pattern_table_and_conditions_are_kept(self):
        made = config(
            lambda step: {"y": step["b"][0][-1], "x": step["a"][-2:]},
            conditions=[Condition.step_index() >= 3],
        )
        assert list(made.flat) == [node(0, start=-2), node(1, stop=-1)]
        assert made.table == "table"
        assert list(made.conditions) == [condition(step_index=True, ge=3)]

    def test_the_default_priority_is_one(self):
        assert config(lambda step: step["a"][-1]).priority.constant_fn.value == 1.0

    def test_the_priority_is_kept(self):
        priority = structured.constant_priority_fn(2.5)
        assert config(lambda step: step["a"][-1], priority=priority).priority == priority

    def test_an_unfinished_condition_is_a_type_error(self):
        for unfinished in (Condition.step_index(), Condition.step_index() % 3):
            with pytest.raises(TypeError):
                config(lambda step: step["a"][-1], conditions=[unfinished])

    def test_a_pattern_needs_indexed_columns(self):
        with pytest.raises(TypeError):
            config(lambda step: step["a"])

    @pytest.mark.parametrize(
        "transform",
        [
            lambda step: step["a"][-1],
            lambda step: {"x": step["a"][-2:], "y": [step["b"][0][-1], step["b"][1][-1]]},
            lambda step: (step["a"][-1], [step["a"][-2:]]),
        ],
    )
    def test_a_pattern_comes_back(self, transform):
        pattern = structured.pattern_from_transform(STEP, transform)
        assert structured.unpack_pattern(structured.create_config(pattern, "table")) == pattern

    def test_a_named_tuple_comes_back_with_its_fields(self):
        made = config(lambda step: Pair(second=step["a"][-1], first=step["a"][-2]))
        unpacked = structured.unpack_pattern(made)
        assert unpacked._fields == Pair._fields
        assert unpacked.first == node(0, stop=-2)

    def test_a_config_without_structure_is_a_flat_list(self):
        flat = [node(0, stop=-1), node(1, stop=-2)]
        assert structured.unpack_pattern(structured.Config(flat=flat)) == flat


class TestConditions:
    @pytest.mark.parametrize(
        ("made", "fields"),
        [
            (Condition.step_index() == 3, {"eq": 3}),
            (Condition.step_index() != 3, {"eq": 3, "inverse": True}),
            (Condition.step_index() >= 3, {"ge": 3}),
            (Condition.step_index() > 3, {"ge": 4}),
            (Condition.step_index() <= 3, {"ge": 4, "inverse": True}),
            (Condition.step_index() < 3, {"ge": 3, "inverse": True}),
            (Condition.step_index() % 4 == 3, {"mod_eq": {"mod": 4, "eq": 3}}),
            (
                Condition.step_index() % 4 != 3,
                {"mod_eq": {"mod": 4, "eq": 3}, "inverse": True},
            ),
            (Condition.step_index() >= np.int64(3), {"ge": 3}),
        ],
        ids=str,
    )
    def test_a_comparison_becomes_a_message(self, made, fields):
        assert made == condition(step_index=True, **fields)

    def test_other_left_sides(self):
        assert (Condition.steps_since_applied() >= 2) == condition(steps_since_applied=True, ge=2)
        assert Condition.is_end_episode() == condition(is_end_episode=True, eq=1)

    def test_data_is_a_nest_of_numbers_to_compare(self):
        data = Condition.data(STEP)
        assert (data["b"][1] == 1) == condition(flat_source_index=2, eq=1)

    @pytest.mark.parametrize(
        "compare",
        [lambda c: c >= 1, lambda c: c > 1, lambda c: c <= 1, lambda c: c < 1],
    )
    def test_a_modulus_goes_with_equality_only(self, compare):
        with pytest.raises(InvalidArgumentError, match="compared with == and != only"):
            compare(Condition.step_index() % 3)

    @pytest.mark.parametrize("modulus", [0, -2])
    def test_a_modulus_is_positive(self, modulus):
        with pytest.raises(InvalidArgumentError, match=f"must be at least 1, got {modulus}"):
            Condition.step_index() % modulus

    def test_a_modulus_comes_once(self):
        with pytest.raises(InvalidArgumentError, match="one modulus only"):
            Condition.step_index() % 3 % 2

    @pytest.mark.parametrize("value", [1.5, "1", None])
    def test_the_right_side_is_an_int(self, value):
        with pytest.raises(TypeError):
            _ = Condition.step_index() == value
        with pytest.raises(TypeError):
            _ = Condition.step_index() >= value

    def test_a_condition_cannot_be_a_key(self):
        with pytest.raises(TypeError, match="unhashable"):
            hash(Condition.step_index())


class TestPriority:
    def test_td_error_names_its_column(self):
        priority = structured.td_error(0.9, STEP, lambda step: step["b"][1])
        assert priority.td_error.max_priority_weight == 0.9
        assert priority.td_error.flat_source_index == 2


class TestInferSignature:
    def test_slices_get_a_time_axis_and_single_steps_none(self):
        step_spec = {
            "a": TensorSpec([2], np.float32),
            "b": [TensorSpec([], np.int32), TensorSpec([None, 3], np.uint8)],
        }
        made = config(
            lambda step: {"x": step["a"][-3:], "y": step["b"][0][-1], "z": step["b"][1][-3:-1]}
        )
        assert structured.infer_signature([made], step_spec) == {
            "x": TensorSpec([3, 2], np.float32, "x"),
            "y": TensorSpec([], np.int32, "y"),
            "z": TensorSpec([2, None, 3], np.uint8, "z"),
        }

    @pytest.mark.parametrize(
        ("index", "length"),
        [
            (slice(-8, None, 2), 4),
            (slice(-7, None, 2), 4),
            (slice(-5, None, 2), 3),
            (slice(-5, -1, 3), 2),
        ],
    )
    def test_a_strided_slice_counts_its_last_part_too(self, index, length):
        made = config(lambda step: step[index], step=None)
        spec = structured.infer_signature([made], np.zeros((3, 3)))
        assert spec.shape == (length, 3, 3)

    def test_names_are_paths(self):
        made = config(lambda step: {"x": [step["a"][-1], {"y": step["a"][-1]}]})
        spec = structured.infer_signature([made], {"a": 1.0, "b": [1, 1]})
        assert [spec["x"][0].name, spec["x"][1]["y"].name] == ["x/0", "x/1/y"]

    @pytest.mark.parametrize(
        ("step_spec", "dtype"),
        [
            (1, np.int64),
            (1.5, np.float64),
            (np.zeros((), np.float16), np.float16),
            (dm_env.specs.Array((), np.int8), np.int8),
        ],
    )
    def test_anything_with_a_dtype_is_a_step_spec(self, step_spec, dtype):
        made = config(lambda step: step[-1], step=None)
        assert structured.infer_signature([made], step_spec) == TensorSpec([], dtype, "")

    def test_lengths_that_differ_are_unknown(self):
        configs = [config(lambda step, n=n: step[-n:], step=None) for n in (2, 2, 3)]
        assert structured.infer_signature(configs, np.zeros((3, 3))).shape == (None, 3, 3)

    def test_lengths_that_agree_are_known(self):
        configs = [config(lambda step, n=n: step[-n : -n + 2], step=None) for n in (5, 6)]
        assert structured.infer_signature(configs, 1).shape == (2,)

    def test_an_unknown_rank_stays_unknown(self):
        made = config(lambda step: step[-2:], step=None)
        assert structured.infer_signature([made], TensorSpec(None, np.int32)).shape is None

    def test_no_config_is_refused(self):
        with pytest.raises(InvalidArgumentError, match=r"At least one config must be provided\."):
            structured.infer_signature([], STEP)

    def test_structures_must_agree(self):
        configs = [config(lambda step: step["a"][-1]), config(lambda step: [step["a"][-1]])]
        with pytest.raises(
            InvalidArgumentError,
            match=r"All configs must have exactly the same pattern_structure\.",
        ):
            structured.infer_signature(configs, STEP)

    def test_tables_must_agree(self):
        configs = [config(lambda step: step["a"][-1], table=table) for table in ("z", "y", "z")]
        with pytest.raises(
            InvalidArgumentError,
            match=r"All configs must target the same table but provided configs included y, z\.",
        ):
            structured.infer_signature(configs, STEP)

    def test_dtypes_must_agree(self):
        configs = [
            config(lambda step: {"x": step["a"][-1]}),
            config(lambda step: {"x": step["b"][0][-1]}),
        ]
        with pytest.raises(
            InvalidArgumentError,
            match=r"Configs produce trajectories with multiple dtypes at \('x',\)\. "
            r"Got \['float64', 'int64'\]",
        ):
            structured.infer_signature(configs, {"a": 1.0, "b": [1, 1]})

    @pytest.mark.parametrize("other", [np.zeros((3, 2)), np.zeros((3, 3, 3))])
    def test_ranks_and_trailing_dimensions_must_agree(self, other):
        configs = [
            config(lambda step: {"x": step["a"][-1]}),
            config(lambda step: {"x": step["b"][0][-1]}),
        ]
        with pytest.raises(
            InvalidArgumentError,
            match=r"Configs produce trajectories with incompatible shapes at \('x',\)\. Got",
        ):
            structured.infer_signature(configs, {"a": np.zeros((3, 3)), "b": [other, 1.0]})
