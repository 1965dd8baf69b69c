# SPDX-License-Identifier: Apache-2.0
"""The decisions of a group: its shards, their addresses, and the owner of each slot.

The program that runs the servers has one `Directory`, and sends its map to all shards when it has
changed. Nothing here waits, sends, or reads a clock.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from reverb._server.shard import NUM_SLOTS, OWN_EPOCH
from reverb.cluster.shard_tables import check_tables, settings_of
from reverb.core import protos
from reverb.errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["NUM_SLOTS", "OWN_EPOCH", "Directory", "parse_map", "slots_as_values"]


class Directory:
    """The map of a group, and the changes of it.

    Every slot always has exactly one owner. Every change increases the epoch. The index of a shard
    is never used again for another one.

    A method of a shard that the group does not have raises `InvalidArgumentError`, and the leave of
    a shard without which no other would be left `FailedPreconditionError`.

    Example:
      >>> directory = Directory("replay")
      >>> directory.lay_out([0, 1])
      >>> directory.register(0, "10.0.0.1:8000", server_id=17)
      True
      >>> directory.num_slots(0), directory.epoch
      (2048, 2)

    Attributes:
      group: Name of the group.
      checkpoint_directory: Directory of the group's checkpoints; empty if there is none.
      epoch: Number of the present map; 0 if there is none yet.
    """

    def __init__(self, group: str, checkpoint_directory: str = "") -> None:
        self.group = group
        self.checkpoint_directory = checkpoint_directory
        self.epoch = 0
        self._shards: dict[int, Any] = {}
        self._owners: list[int] = []
        # For each slot, the former owners, which may still hold items of it.
        self._formers: list[tuple[int, ...]] = [()] * NUM_SLOTS
        self._tables: list[Any] = []
        # Epoch of the last map in which a client has changed them.
        self._tables_epoch = 0
        # The program's own tables; clients may have changed those of the group since.
        self._program_tables: list[Any] = []
        self._next_index = 0

    @property
    def indices(self) -> list[int]:
        """The shards in the map."""
        return sorted(self._shards)

    def shard(self, index: int) -> Any:
        """Returns a copy of the `Shard` message of a shard."""
        copy = protos.Shard()
        copy.CopyFrom(self._known(index))
        return copy

    def num_slots(self, index: int) -> int:
        """Returns how many slots a shard owns."""
        return self._owners.count(index)

    def lay_out(self, indices: Iterable[int]) -> None:
        """Makes the first map: shards that are not registered yet, with equal parts of the slots.

        Raises:
          InvalidArgumentError: If there is no shard, or if there are more shards than slots.
          FailedPreconditionError: If there is a map already.
        """
        indices = sorted(set(indices))
        if not 0 < len(indices) <= NUM_SLOTS:
            raise InvalidArgumentError(
                f"a group must have from 1 to {NUM_SLOTS} shards, got {len(indices)}"
            )
        if self._owners:
            raise FailedPreconditionError(f"group '{self.group}' has a map already")
        self._shards = {index: protos.Shard(index=index) for index in indices}
        count = len(indices)
        self._owners = [indices[slot * count // NUM_SLOTS] for slot in range(NUM_SLOTS)]
        self._next_index = indices[-1] + 1
        self.epoch += 1

    def register(self, index: int, address: str, *, server_id: int, unix_path: str = "") -> bool:
        """Stores the present address of a shard; returns whether that changed the map."""
        shard = self._known(index)
        before = (shard.address, shard.unix_path, shard.server_id)
        if before == (address, unix_path, server_id):
            return False
        shard.address, shard.unix_path, shard.server_id = address, unix_path, server_id
        self.epoch += 1
        return True

    def reserve(self) -> int:
        """Returns the index for a shard that will be added when it runs."""
        self._next_index += 1
        return self._next_index - 1

    def add(
        self,
        index: int | None = None,
        address: str = "",
        *,
        server_id: int = 0,
        unix_path: str = "",
        former_slots: Iterable[int] = (),
    ) -> int:
        """Adds a shard with an equal part of the slots for new keys, taken from the largest shards.

        The previous owners of these slots stay in the map as former owners: they hold the items
        that were inserted so far.

        Args:
          index: An index from `reserve`, or that of a removed shard that is back with its items;
            `None`: a new one.
          address: Address of the shard.
          server_id: Id of its server.
          unix_path: Path of its Unix socket, if it has one.
          former_slots: Slots that it owned before it was removed. It may still hold items of them.

        Returns:
          The index of the shard.

        Raises:
          InvalidArgumentError: If the group has a shard with this index, or if it is negative.
        """
        index = self.reserve() if index is None else index
        if index in self._shards or index < 0:
            raise InvalidArgumentError(
                f"index must be a number that no shard has, and at least 0, got {index}; group "
                f"'{self.group}' has {self.indices}"
            )
        self._next_index = max(self._next_index, index + 1)
        self._shards[index] = protos.Shard(
            index=index, address=address, server_id=server_id, unix_path=unix_path
        )
        for slot in former_slots:
            self._formers[slot] = (*self._formers[slot], index)
        counts = {it: self._owners.count(it) for it in self.indices}
        # Takes slots from the ends of the largest owners' ranges, which keeps the ranges few.
        for _ in range(NUM_SLOTS // len(self._shards)):
            giver = max(counts, key=lambda it: (counts[it], -it))
            slot = NUM_SLOTS - 1 - self._owners[::-1].index(giver)
            others = tuple(it for it in self._formers[slot] if it not in (index, giver))
            self._formers[slot] = (*others, giver)
            self._owners[slot] = index
            counts[giver] -= 1
            counts[index] += 1
        self.epoch += 1
        return index

    def begin_drain(self, index: int) -> None:
        """Marks a shard that is about to leave, so that no new insert streams begin at it."""
        shard = self._known(index)
        self._check_leaves_others(index)
        if not shard.is_draining:
            shard.is_draining = True
            self.epoch += 1

    def end_drain(self, index: int) -> None:
        """Removes the mark of `begin_drain`: the shard stays."""
        shard = self._known(index)
        if shard.is_draining:
            shard.is_draining = False
            self.epoch += 1

    def heirs(self, index: int) -> dict[int, list[int]]:
        """Returns the slots of a shard that each of the others gets when it is removed."""
        self._known(index)
        others = self._check_leaves_others(index)
        counts = {it: self._owners.count(it) for it in others}
        heirs: dict[int, list[int]] = {it: [] for it in others}
        slots = [slot for slot in range(NUM_SLOTS) if self._owners[slot] == index]
        # Consecutive slots for each shard, so that all have the same number in the end.
        total = sum(counts.values()) + len(slots)
        wanted = {
            it: total * (at + 1) // len(others) - total * at // len(others)
            for at, it in enumerate(others)
        }
        missing = [it for it in others for _ in range(wanted[it] - counts[it])]
        missing += [others[-1]] * (len(slots) - len(missing))
        for slot, heir in zip(slots, missing, strict=False):
            heirs[heir].append(slot)
        return heirs

    def slots_without(self, index: int) -> dict[int, list[int]]:
        """Returns the slots that each of the others will own after a shard was removed."""
        slots = self.heirs(index)
        for slot, owner in enumerate(self._owners):
            if owner != index:
                slots.setdefault(owner, []).append(slot)
        return {owner: sorted(it) for owner, it in slots.items()}

    def remove(self, index: int) -> None:
        """Removes a shard from the map; the others get its slots, as in `heirs`."""
        for heir, slots in self.heirs(index).items():
            for slot in slots:
                self._owners[slot] = heir
        del self._shards[index]
        for slot in range(NUM_SLOTS):
            self._formers[slot] = tuple(
                it for it in self._formers[slot] if it not in (index, self._owners[slot])
            )
        self.epoch += 1

    def learn(self, proto: Any) -> bool:
        """Takes over the map of a shard, if its epoch is higher than that of this directory.

        Returns:
          Whether the map was taken over.

        Raises:
          FailedPreconditionError: If the map is of another group.
        """
        if proto.group != self.group:
            raise FailedPreconditionError(
                f"a shard at {[shard.address for shard in proto.shards]} is of the group "
                f"'{proto.group}', not of '{self.group}'"
            )
        if proto.epoch <= self.epoch:
            return False
        self._shards = {}
        for shard in proto.shards:
            self._shards[shard.index] = protos.Shard()
            self._shards[shard.index].CopyFrom(shard)
        self.set_slots(slots_as_values(proto))
        self._tables = list(proto.tables)
        self.epoch = proto.epoch
        return True

    def set_slots(self, slots: Sequence[Any]) -> None:
        """Sets the owners of the slots from those of a map or a checkpoint, see `slots_as_values`.

        Raises:
          InvalidArgumentError: If a slot has no owner or two, or if an owner is not a shard.
        """
        owners: list[int | None] = [None] * NUM_SLOTS
        formers: list[tuple[int, ...]] = [()] * NUM_SLOTS
        for entry in slots:
            first, count, owner = entry["first"], entry["count"], entry["owner"]
            if not 0 <= first <= first + count <= NUM_SLOTS or owner not in self._shards:
                raise InvalidArgumentError(
                    f"slots from {first} to {first + count - 1} of shard {owner} do not fit into a "
                    f"group of the shards {self.indices} with {NUM_SLOTS} slots"
                )
            for slot in range(first, first + count):
                if owners[slot] is not None:
                    raise InvalidArgumentError(f"slot {slot} has two owners")
                owners[slot] = owner
                formers[slot] = tuple(it for it in entry["former_owners"] if it in self._shards)
        if None in owners:
            raise InvalidArgumentError(f"slot {owners.index(None)} has no owner")
        self._owners = [owner for owner in owners if owner is not None]
        self._formers = formers
        self._next_index = max(self._next_index, max(self._shards) + 1)
        self.epoch += 1

    def set_tables(self, index: int, tables: Sequence[bytes]) -> None:
        """Stores the tables that the program gave to a shard: those of the whole group.

        They are serialized `TableInfo` messages, whose counters are ignored.

        Raises:
          InvalidArgumentError: If they differ from those of the other shards; the text names shard,
            table and field.
        """
        found = [protos.TableInfo.FromString(table) for table in tables]
        if self._program_tables:
            check_tables(index, found, self._program_tables)
            return
        self._program_tables = [settings_of(table) for table in found]
        self._tables = self._tables or self._program_tables

    def learn_tables(self, proto: Any) -> bool:
        """Takes over the tables of a map that a client has changed at the shards.

        Returns:
          Whether the shards need a newer map than they have.
        """
        if proto.group != self.group or proto.epoch <= self._tables_epoch:
            return False  # Every shard reports a change, and one may be late.
        self._tables_epoch = proto.epoch
        tables = list(proto.tables)
        if tables == self._tables and (proto.epoch < self.epoch or proto == self.to_proto()):
            return False
        self._tables = tables
        self.epoch = max(self.epoch, proto.epoch) + 1
        return True

    def to_proto(self) -> Any:
        """Returns the present map as a `ShardMap` message."""
        return protos.ShardMap(
            epoch=self.epoch,
            group=self.group,
            shards=[self._shards[index] for index in self.indices],
            slots=[protos.SlotRange(**entry) for entry in self.slots()],
            tables=self._tables,
            checkpoint_directory=self.checkpoint_directory,
        )

    def slots(self) -> list[dict[str, Any]]:
        """Returns the ranges of slots that have the same owner, as plain values."""
        ranges: list[dict[str, Any]] = []
        for slot, owner in enumerate(self._owners):
            formers = list(self._formers[slot])
            last = ranges[-1] if ranges else None
            if last and (last["owner"], last["former_owners"]) == (owner, formers):
                last["count"] += 1
            else:
                ranges.append({"first": slot, "count": 1, "owner": owner, "former_owners": formers})
        return ranges

    def _known(self, index: int) -> Any:
        if index not in self._shards:
            raise InvalidArgumentError(
                f"group '{self.group}' has no shard {index}; it has {self.indices}"
            )
        return self._shards[index]

    def _check_leaves_others(self, index: int) -> list[int]:
        """The shards that stay when one leaves."""
        others = [it for it in self.indices if it != index and not self._shards[it].is_draining]
        if not others:
            raise FailedPreconditionError(
                f"shard {index} cannot leave group '{self.group}', because no other shard is left "
                "to take its slots; add one first"
            )
        return others


def parse_map(serialized: bytes) -> Any:
    """Returns a `ShardMap` message."""
    return protos.ShardMap.FromString(serialized)


def slots_as_values(proto: Any) -> list[dict[str, Any]]:
    """Returns the ranges of slots of a `ShardMap` message as plain values."""
    return [
        {
            "first": it.first,
            "count": it.count,
            "owner": it.owner,
            "former_owners": list(it.former_owners),
        }
        for it in proto.slots
    ]
