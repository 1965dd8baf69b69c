# SPDX-License-Identifier: Apache-2.0
"""Each option of a table reaches the core, copies, configs, checkpoints, journals and shards.

Fails for an option that was forgotten somewhere; CONTRIBUTING.md has the recipe.
"""

import inspect

import numpy as np
import pytest

import reverb
from reverb import checkpointers, testing
from reverb._server.table import arguments_of
from reverb._server.table_part import DIVIDED, part_of
from reverb.specs import TensorSpec

# Another value than the default of `testing.table`.
VALUES = {
    "sampler": lambda: reverb.selectors.Prioritized(0.5),
    "remover": reverb.selectors.Lifo,
    "max_size": lambda: 7,
    "rate_limiter": lambda: reverb.rate_limiters.SampleToInsertRatio(2.0, 3, 8.0),
    "max_times_sampled": lambda: 3,
    "signature": lambda: {"a": TensorSpec([None], np.int64, "a")},
    "max_bytes": lambda: 4096,
    "when_full": lambda: "wait",
    "max_priority": lambda: "ever",
}
# The name is none; extensions do not exist; only the program that makes a table has its seed.
# Rollouts need a signature, and no journal has them: `tests/rollouts/test_settings.py`.
NO_OPTIONS = {"name", "extensions", "seed", "rollouts"}
OPTIONS = set(inspect.signature(reverb.Table).parameters) - NO_OPTIONS

pytestmark = pytest.mark.parametrize("option", sorted(OPTIONS))


@pytest.fixture
def make(option):
    """Makes a table in which this option alone is not the default."""
    return lambda: testing.table(**{option: VALUES[option]()})


def test_the_settings_tell_it(make):
    assert make().internal_settings != testing.table().internal_settings


def test_a_copy_has_it(make):
    assert make().replace().internal_settings == make().internal_settings


def test_a_copy_may_have_another_value(make, option):
    changed = testing.table().replace(**{option: VALUES[option]()})
    assert changed.internal_settings == make().internal_settings


def test_a_config_gives_it(make):
    settings = make().internal_settings
    table = reverb.Table(**arguments_of(settings)).internal_settings
    # A config has no signature.
    table.signature.CopyFrom(settings.signature)
    settings.signature.SetInParent()
    assert table == settings


def test_shards_divide_it_only_if_that_is_listed(make):
    whole = make().internal_settings
    part = part_of(whole, 1, 3)
    for mine, theirs in ((part, whole), (part.rate_limiter, whole.rate_limiter)):
        for field in mine.DESCRIPTOR.fields:
            if field.name not in (*DIVIDED, "rate_limiter"):
                assert getattr(mine, field.name) == getattr(theirs, field.name)


@pytest.mark.parametrize("kind", ["checkpoint", "journal"])
def test_what_is_stored_restores_it_or_tells_that_it_differs(make, option, kind, tmp_path, capfd):
    def serve(table, **options):
        if kind == "journal":
            return reverb.Server([table], store=reverb.Store(tmp_path, **options))
        checkpointer = checkpointers.DefaultCheckpointer(tmp_path, **options)
        return reverb.Server([table], checkpointer=checkpointer)

    with serve(make()) as server:
        server.localhost_client().checkpoint()
    restored = testing.table()
    with serve(restored, restore_settings=True):
        assert restored.internal_settings == make().internal_settings
    capfd.readouterr()
    with serve(testing.table()):
        line = capfd.readouterr().err
    name = {"rate_limiter": "samples_per_insert"}.get(option, option)
    assert name in line
