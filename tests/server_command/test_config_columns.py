# SPDX-License-Identifier: Apache-2.0
"""Signatures of the tables of a config, in both ways to write them."""

import numpy as np
import pytest

import reverb
from reverb.server_executable import server_from_proto
from reverb.server_executable.config_columns import columns_text
from reverb.server_executable.server_config import read_config

CONFIG = """\
tables: {
  table_name: "t"
  queue: true
  max_size: 10
  %s
}
"""
LONG = """signature { dict_value {
  fields { key: "obs" value { dict_value { fields { key: "pixels" value { tensor_spec_value {
    dtype: DT_UINT8 shape { dim { size: -1 } dim { size: 84 } } } } } } } }
  fields { key: "name" value { tensor_spec_value { dtype: DT_STRING shape {} } } }
  fields { key: "reward" value { tensor_spec_value {
    dtype: DT_FLOAT shape { unknown_rank: true } } } }
} }"""
SHORT = 'columns: ["obs/pixels uint8[?, 84]", "name string[]", "reward float"]'


def parsed(columns):
    return read_config(CONFIG % columns)


@pytest.mark.parametrize("columns", [SHORT, LONG])
def test_both_spellings_make_one_signature(columns):
    config = parsed(columns)
    assert (config.problems, config.unused) == ([], [])
    (table,) = server_from_proto.tables_from_proto(config.config.tables)
    signature = table.info.signature
    assert set(signature) == {"name", "obs", "reward"}
    assert signature["obs"]["pixels"] == reverb.specs.TensorSpec([None, 84], np.uint8)
    assert signature["name"] == reverb.specs.TensorSpec([], object)
    assert signature["reward"] == reverb.specs.TensorSpec(None, np.float32)
    told = columns_text(config.config.tables[0].signature)
    assert told == "name string[], obs/pixels uint8[?,84], reward float32"


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ('columns: "obs"', "columns must be a path, a dtype and a shape, such as "),
        ('columns: "obs float32[4"', "columns must be a path, a dtype and a shape, such as "),
        ('columns: "obs float31[4]"', "columns has no dtype in 'obs float31[4]': it must be one "),
        ('columns: "obs qint8[4]"', "columns has no dtype in 'obs qint8[4]'"),
        ('columns: "obs int8[4,]"', "columns has a shape that is no list of sizes: 'obs int8"),
        ('columns: ["a int8", "a int8"]', "columns has a path that is taken or has an empty name"),
        ('columns: ["a int8", "a/b int8"]', "columns has a path that is taken"),
        ('columns: "/a int8"', "columns has a path that is taken or has an empty name: '/a int8'"),
        ('columns: "a int8" ' + LONG, "columns cannot be combined with signature"),
        ("signature { int64_value: 7 }", "signature is no nest of specs: a signature holds a val"),
    ],
)
def test_a_bad_signature_is_named_with_its_line(columns, problem):
    (found,) = parsed(columns).problems
    assert str(found).startswith(f"line 5: tables[0].{problem}")


def test_an_item_that_does_not_fit_is_refused_to_its_writer(start):
    columns = parsed('columns: "o float32[4]"').config.tables
    server = start(*server_from_proto.tables_from_proto(columns))
    client = reverb.Client(f"localhost:{server.port}")
    client.insert({"o": np.zeros(4, np.float32)}, {"t": 1.0})
    with pytest.raises(reverb.errors.SignatureMismatchError, match="column o must have dtype flo"):
        client.insert({"o": np.zeros(4)}, {"t": 1.0})
