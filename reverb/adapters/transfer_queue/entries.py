# SPDX-License-Identifier: Apache-2.0
"""What is known of keys: their names, tags and fields, in a table of its own.

A put writes an entry for each key: its tag, and the forms of the fields that it has written. Puts
with the same names of fields and tags, a *layout*, replace each other's entries. Puts with others
add entries beside them, so no put reads and writes the same entry, and programs that put different
fields or tags of a key at the same time lose none. A reader merges the entries of a key by their
versions, which count puts of the key. The layouts of a partition stand in numbered slots; each is
taken by an insert that does nothing if another process was faster.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import reverb
from reverb.adapters.transfer_queue.columns import Form
from reverb.adapters.transfer_queue.keyed_items import field_keys, insert_rows, text_key
from reverb.adapters.transfer_queue.plain_values import pack, unpack, unpack_all

__all__ = ["ENTRIES", "Entries", "Known", "Layout"]

ENTRIES = "transfer_queue_entries"
_SLOTS = 16


@dataclasses.dataclass(frozen=True)
class Layout:
    """The names of the fields and of the tags that a put has written, each sorted."""

    fields: tuple[str, ...]
    tags: tuple[str, ...]

    @functools.cached_property
    def key(self) -> np.uint64:
        """The part of the keys of its entries that it decides."""
        return text_key("entry", str(len(self.fields)), *self.fields, *self.tags)


@dataclasses.dataclass
class Known:
    """A key as its entries have it, merged in the order of the puts.

    Attributes:
      key: Its name; `None`: there is no such key.
      created: When it was put first, in nanoseconds since 1970 by the clock of that process.
      version: Number of the last put.
      fields: The form of each field.
      tag: Its tag.
    """

    key: str | None = None
    partition: str = ""
    created: int = 0
    version: int = 0
    fields: dict[str, Form] = dataclasses.field(default_factory=dict)
    tag: dict[str, Any] = dataclasses.field(default_factory=dict)


class Entries:
    """The entries of all partitions on a server."""

    def __init__(self, client: reverb.Client) -> None:
        self._client = client
        self._guesses: dict[str, list[Layout]] = {}

    def layouts(self, partition: str) -> list[Layout]:
        """Returns the layouts of all puts into a partition."""
        return self._read_slots(partition)[0]

    def read(self, partition: str, rows: np.ndarray) -> tuple[list[Layout], list[Known]]:
        """Returns the layouts of all puts into a partition, and what is known of some of its keys.

        The entries are asked for together with the slots, by the layouts that were found last time.
        The slots tell whether these are all, so nothing is answered from memory.
        """
        distinct, places = np.unique(rows, return_inverse=True)
        guess = self._guesses.get(partition, [])
        layouts, answers = self._read_slots(partition, self._entry_keys(distinct, guess))
        if layouts != guess:
            self._guesses[partition] = layouts
            answers = list(self._fetch(self._entry_keys(distinct, layouts)))
        found: list[list[tuple[Any, bytes]]] = [[] for _ in distinct]
        for at, head, forms in answers:
            found[at % len(distinct)].append((unpack(head), forms))
        known = [_merged(entries, partition) for entries in found]
        return layouts, [known[place] for place in places]

    def write(
        self,
        known: Sequence[Known],
        rows: np.ndarray,
        layout: Layout,
        forms: Sequence[tuple[Form, ...]],
        tags: Sequence[dict[str, Any]],
    ) -> None:
        """Writes an entry for each row: the forms of the fields that were put, and the tag."""
        heads = np.empty(len(rows), object)
        heads[:] = [
            pack([it.partition, it.key, it.created, it.version + 1, tag])
            for it, tag in zip(known, tags, strict=True)
        ]
        packed = np.empty(len(rows), object)
        packed[:] = [_packed_forms(layout.fields, of_row) for of_row in forms]
        insert_rows(self._client, ENTRIES, [heads, packed], field_keys(rows, layout.key))

    def delete(self, rows: np.ndarray, layouts: Sequence[Layout]) -> None:
        """Deletes the entries of some rows."""
        if layouts:
            keys = [field_keys(rows, layout.key) for layout in layouts]
            self._client.delete_items(ENTRIES, np.concatenate(keys))

    def forget(self, partition: str) -> None:
        """Deletes the layouts of a partition without keys, so that it is not listed any more."""
        self._client.delete_items(ENTRIES, _slot_keys(partition, len(self.layouts(partition))))

    def tags(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Returns the tags of all keys by partition, in the order of their first puts."""
        heads = [sample.data[0][0] for sample in self._client.scan(ENTRIES, columns=[0])]
        found: dict[str, list[Any]] = {}
        for partition, *head in unpack_all(heads):
            found.setdefault(partition, []).append(head)
        return {partition: _tags_of(entries) for partition, entries in found.items()}

    def known(self, partition: str) -> list[Known]:
        """Returns what is known of all keys of a partition, in the order of their first puts."""
        by_key: dict[str, list[tuple[Any, bytes]]] = {}
        for sample in self._client.scan(ENTRIES):
            head, forms = unpack(sample.data[0][0]), sample.data[1][0]
            if head[0] == partition and head[1] is not None:
                by_key.setdefault(head[1], []).append((head, forms))
        known = (_merged(entries, partition) for entries in by_key.values())
        return sorted(known, key=lambda it: it.created)

    def add(self, partition: str, layout: Layout) -> None:
        """Makes sure that a layout has a slot."""
        while layout not in (layouts := self.layouts(partition)):
            key = _slot_keys(partition, len(layouts) + 1)[-1:]
            head = pack([partition, None, list(layout.fields), list(layout.tags)])
            row = [np.array([it], object) for it in (head, pack({}))]
            insert_rows(self._client, ENTRIES, row, key, replace=False)

    def _read_slots(
        self, partition: str, others: Sequence[np.ndarray] = ()
    ) -> tuple[list[Layout], list[tuple[int, bytes, bytes]]]:
        """Returns the layouts, which have the first slots, and the answers for the other keys."""
        count = _SLOTS
        while True:
            answers = list(self._fetch([_slot_keys(partition, count), *others]))
            layouts = [_layout_in(head) for at, head, _ in answers if at < count]
            if len(layouts) < count:
                rest = [(at - count, head, forms) for at, head, forms in answers if at >= count]
                return layouts, rest
            count *= 2

    def _fetch(self, keys: Sequence[np.ndarray]) -> Iterator[tuple[int, bytes, bytes]]:
        """Yields the position in `keys` and the columns of each entry that is there, in order."""
        wanted = np.concatenate(keys) if keys else np.empty(0, np.uint64)
        if len(wanted):
            batch = self._client.fetch(ENTRIES, wanted, squeeze=True)
            if len(batch.info.key):
                order = np.argsort(wanted)
                places = order[np.searchsorted(wanted, batch.info.key, sorter=order)]
                yield from zip(places.tolist(), *(it.tolist() for it in batch.data), strict=True)

    @staticmethod
    def _entry_keys(rows: np.ndarray, layouts: Sequence[Layout]) -> list[np.ndarray]:
        return [field_keys(rows, layout.key) for layout in layouts]


def _slot_keys(partition: str, count: int) -> np.ndarray:
    return field_keys(np.arange(count, dtype=np.uint64), text_key("layouts", partition))


def _merged(entries: list[tuple[Any, bytes]], partition: str) -> Known:
    if not entries:
        return Known(None, partition)
    entries.sort(key=lambda entry: entry[0][3])
    head = entries[-1][0]
    known = Known(head[1], head[0], min(entry[0][2] for entry in entries), head[3])
    for (*_, tag), forms in entries:
        known.tag.update(tag)
        known.fields.update(_forms_in(forms))
    return known


def _tags_of(entries: list[Any]) -> dict[str, dict[str, Any]]:
    """Returns the tags by key; `entries` are `[key, created, version, tag]`."""
    entries = [entry for entry in entries if entry[0] is not None]
    entries.sort(key=operator.itemgetter(1))
    tags = {entry[0]: entry[3] for entry in entries}
    if len(tags) < len(entries):  # Some keys have several.
        tags = {key: {} for key in tags}
        for key, _, _, tag in sorted(entries, key=operator.itemgetter(2)):
            tags[key].update(tag)
    return tags


@functools.lru_cache(4096)
def _layout_in(head: bytes) -> Layout:
    _, _, fields, tags = unpack(head)
    return Layout(tuple(fields), tuple(tags))


@functools.lru_cache(4096)
def _packed_forms(names: tuple[str, ...], forms: tuple[Form, ...]) -> bytes:
    pairs = zip(names, forms, strict=True)
    return pack({name: [dtype, list(shape), rest] for name, (dtype, shape, rest) in pairs})


@functools.lru_cache(4096)
def _forms_in(packed: bytes) -> dict[str, Form]:
    """Returns the forms of an entry, by field; shared, so not to be changed."""
    return {name: (form[0], tuple(form[1]), form[2]) for name, form in unpack(packed).items()}
