# SPDX-License-Identifier: Apache-2.0
"""The settings of rollouts reach copies, configs and checkpoints."""

import re

import pytest

import reverb
from reverb import checkpointers
from reverb.server_executable import server_from_proto
from reverb.server_executable.server_config import read_config
from support.rollout_tables import SIGNATURE, info, prompt, table
from support.sources import ROOT

# Another value than the default.
VALUES = {
    "min_rollouts": 3,
    "ahead": 1,
    "items_per_version": 5,
    "max_staleness": 2,
    "on_stale": "keep",
    "open_timeout_s": 1.5,
    "max_attempts": 7,
}


@pytest.fixture(params=sorted(VALUES))
def given(request):
    values = {request.param: VALUES[request.param]}
    if request.param in ("ahead", "max_staleness"):
        values["items_per_version"] = 4
    if request.param == "items_per_version":
        values["ahead"] = 0
    return values


def test_every_setting_is_here():
    fields = set(reverb.Rollouts.__dataclass_fields__)
    assert set(VALUES) == fields - {"num_rollouts", "item"}


def test_a_copy_has_it(given):
    made = table(4, **given).internal_settings
    assert made != table(4).internal_settings
    assert table(4, **given).replace().internal_settings == made


def test_the_server_tells_it(given, serve):
    settings = info(serve(table(4, **given))).settings
    assert {name: getattr(settings, name) for name in given} == given
    assert (settings.num_rollouts, settings.item) == (4, ("prompt",))


def test_a_checkpoint_restores_it(given, tmp_path):
    def serve(made, **options):
        checkpointer = checkpointers.DefaultCheckpointer(str(tmp_path), **options)
        return reverb.Server([made], checkpointer=checkpointer)

    with serve(table(4, **given)) as server:
        client = server.localhost_client()
        client.insert_item("train", prompt(0), name="a")
        client.checkpoint()
    restored = table(4)
    with serve(restored, restore_settings=True) as server:
        stored = table(4, **given).internal_settings.rollouts
        assert restored.internal_settings.rollouts.settings == stored.settings
        assert info(server.localhost_client()).open == 1


def config(settings):
    return f"""
      port: 8000
      tables: {{
        table_name: "train"
        columns: ["prompt int32[?,?]", "score float32[?]", "tokens int32[?,?]"]
        sampler: {{ fifo: true }}
        remover: {{ fifo: true }}
        max_size: 4096
        max_times_sampled: 1
        rate_limiter: {{ min_size: 1 }}
        rollouts: {{ {settings} }}
      }}
    """


def test_a_config_has_the_same_settings(given):
    def written(name, value):
        if name == "open_timeout_s":
            return f"open_timeout_ms: {round(1000 * value)}"
        return f"{name}: {value.upper() if name == 'on_stale' else value}"

    settings = " ".join(written(name, value) for name, value in given.items())
    text = config(f"settings: {{ item_columns: 0 num_rollouts: 4 {settings} }}")
    parsed = read_config(text)
    assert (parsed.problems, parsed.unused) == ([], [])
    (made,) = server_from_proto.tables_from_proto(parsed.config.tables)
    settings = made.internal_settings.rollouts
    assert settings == table(4, **given).internal_settings.rollouts


def test_the_config_of_the_page_is_good():
    page = (ROOT / "docs/reference/config.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```text\n(tables: [^`]*rollouts: [^`]*)```", page)
    parsed = read_config("port: 8000\n" + text)
    assert (parsed.problems, parsed.unused) == ([], [])
    (made,) = server_from_proto.tables_from_proto(parsed.config.tables)
    expected = reverb.Table.rollouts("train", 8, SIGNATURE, max_staleness=2, items_per_version=16)
    assert made.internal_settings.rollouts == expected.internal_settings.rollouts


def test_what_checkpoints_alone_use_is_named():
    text = config("version: 3 settings: { num_columns: 3 item_columns: 0 num_rollouts: 4 }")
    unused = [note.text for note in read_config(text).unused]
    path = "tables[0].rollouts"
    expected = [f"{path}.{it} has no effect here" for it in ("version", "settings.num_columns")]
    assert sorted(unused) == sorted(expected)


def test_a_column_that_is_not_there_is_refused():
    text = config("settings: { item_columns: 3 num_rollouts: 4 }")
    (problem,) = read_config(text).problems
    assert "item_columns" in problem.text
