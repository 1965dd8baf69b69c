# SPDX-License-Identifier: Apache-2.0
"""How selectors are made and copied; what they pick is tested in the engine."""

import functools
import re
import typing

import pytest

import reverb
from reverb import checkpointers, item_selectors, reverb_types, testing
from reverb.core import native, protos
from reverb.errors import InvalidArgumentError, UnimplementedError
from reverb.server_executable import config_spellings
from support.sources import ROOT

SELECTORS = {
    "FifoSelector": (item_selectors.Fifo(), {"fifo": True}),
    "LifoSelector": (item_selectors.Lifo(), {"lifo": True}),
    "UniformSelector": (item_selectors.Uniform(), {"uniform": True}),
    "PrioritizedSelector(priority_exponent=0.8)": (
        item_selectors.Prioritized(0.8),
        {"prioritized": {"priority_exponent": 0.8}},
    ),
    "HeapSelector(sign=1)": (item_selectors.MinHeap(), {"heap": {"min_heap": True}}),
    "HeapSelector(sign=-1)": (item_selectors.MaxHeap(), {"heap": {}}),
}


@pytest.mark.parametrize("text", SELECTORS)
def test_repr_and_options_describe_a_selector(text):
    selector, options = SELECTORS[text]
    assert repr(selector) == text
    assert repr(item_selectors.from_options(protos.KeyDistributionOptions(**options))) == text


def test_the_exponent_may_be_named():
    assert repr(item_selectors.Prioritized(priority_exponent=1)).endswith("=1)")


def test_the_exponent_is_required():
    with pytest.raises(TypeError):
        item_selectors.Prioritized()


def test_a_negative_exponent_is_a_warning():
    """It is no error, because dm-reverb takes it and checkpoints have it."""
    text = (
        "priority_exponent should be at least 0, got -0.5: the lower the priority of an item, the "
        "more often it is selected, and never one of priority 0 while others are positive. To "
        "sample high priorities more often, pass 0.5."
    )
    with pytest.warns(UserWarning, match=re.escape(text)) as warned:
        selector = item_selectors.Prioritized(-0.5)
    assert repr(selector).endswith("=-0.5)")
    (warning,) = warned
    assert warning.filename == __file__


def test_heaps_are_no_classes():
    assert isinstance(item_selectors.MinHeap, functools.partial)
    assert isinstance(item_selectors.MaxHeap, functools.partial)


def test_empty_options_describe_none():
    with pytest.raises(UnimplementedError, match="must be one of"):
        item_selectors.from_options(protos.KeyDistributionOptions())


def test_a_false_option_describes_none():
    with pytest.raises(InvalidArgumentError, match="fifo must be true, got false"):
        item_selectors.from_options(protos.KeyDistributionOptions(fifo=False))


def test_every_selector_of_the_messages_has_a_kind():
    options = protos.KeyDistributionOptions.DESCRIPTOR
    ours = options.nested_types_by_name["Extension"]
    oneofs = [message.oneofs_by_name["distribution"] for message in (options, ours)]
    kinds = {field.name for oneof in oneofs for field in oneof.fields}
    heaps = {"min_heap", "max_heap"}
    assert kinds - {"draw", "heap"} == set(item_selectors.BY_KIND) - heaps


def _all_selectors():
    """Each class of selectors in the core, with arguments for it."""
    arguments = {"PrioritizedSelector": (0.5,), "HeapSelector": (True,), "RecentSelector": (4.0,)}
    return [
        (cls, arguments.get(cls.__name__, ()))
        for cls in vars(native).values()
        if isinstance(cls, type)
        and issubclass(cls, native.ItemSelector)
        and cls is not native.ItemSelector
    ]


@pytest.mark.parametrize(
    ("cls", "arguments"), _all_selectors(), ids=lambda value: getattr(value, "__name__", "")
)
class TestEverySelector:
    """Fails for a selector that was forgotten somewhere; CONTRIBUTING.md has the recipe."""

    def test_it_has_a_public_name(self, cls, arguments):
        makers = [getattr(item_selectors, name) for name in item_selectors.__all__]
        assert cls in {getattr(maker, "func", maker) for maker in makers}
        kinds = item_selectors.BY_KIND.values()
        assert cls in {getattr(maker, "func", maker) for maker in kinds}
        assert cls in typing.get_args(reverb_types.SelectorType)

    def test_it_survives_its_message(self, cls, arguments):
        selector = cls(*arguments)
        options = testing.table(sampler=cls(*arguments)).info.sampler_options
        assert repr(item_selectors.from_options(options)) == repr(selector)

    def test_a_config_may_name_it(self, cls, arguments):
        options = testing.table(sampler=cls(*arguments)).info.sampler_options
        kind, parameters = item_selectors.selector_settings(options)
        parameters.pop("draw", None)
        value = "{{ {} }}".format(" ".join(f"{name}: {it}" for name, it in parameters.items()))
        config = (
            f'tables {{ table_name: "t" sampler {{ {kind}: {value if parameters else "true"} }} }}'
        )
        message, problems = config_spellings.parse_written(config)
        assert problems == []
        assert repr(item_selectors.from_options(message.tables[0].sampler)) == repr(
            item_selectors.from_options(options)
        )

    def test_a_checkpoint_restores_it(self, cls, arguments, tmp_path):
        def serve(sampler):
            checkpointer = checkpointers.DefaultCheckpointer(tmp_path, restore_settings=True)
            return reverb.Server([testing.table(sampler=sampler)], checkpointer=checkpointer)

        with serve(cls(*arguments)) as server:
            client = server.localhost_client()
            saved = client.server_info()["table"].sampler_options
            client.checkpoint()
        with serve(reverb.selectors.MaxHeap()) as server:
            assert server.localhost_client().server_info()["table"].sampler_options == saved


def test_the_docs_describe_every_selector():
    concepts = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    table = concepts[concepts.index("| selector |") :].split("\n\n")[0]
    reference = (ROOT / "docs/reference/selectors.rst").read_text(encoding="utf-8")
    names = {*item_selectors.__all__} - {"from_options"}
    assert set(re.findall(r"`(\w+)", table)) >= names
    assert set(re.findall(r"class:: reverb\.selectors\.(\w+)", reference)) == names
