# SPDX-License-Identifier: Apache-2.0
"""The fields of the items in a table, shared between its processes."""

from typing import Any

import numpy as np

from reverb.adapters.torchrl.fields import Fields
from reverb.errors import InvalidArgumentError

__all__ = ["TableFields", "fields_table"]


def fields_table(name: str) -> str:
    """Name of the table that has the fields of another one."""
    return f"{name}.fields"


class TableFields:
    """The fields as far as this process knows them; exchanges them with other processes.

    The first writer inserts the fields into a separate table. Without that table, or before, the
    names are those of the signature.
    """

    def __init__(self, access: Any) -> None:
        self._access = access
        self._known: Fields | None = None
        self._unconfirmed: Fields | None = None
        # Whether each column has a time axis, if only a signature gives the fields.
        self._have_time: list[bool] | None = None

    def known(self) -> Fields | None:
        """The fields, if this process has learned them."""
        return self._known

    def remember(self, fields: Fields | None) -> None:
        """Takes over the fields that another process has learned."""
        self._known, self._unconfirmed, self._have_time = fields, None, None

    def in_order(self, fields: Fields, columns: list[Any]) -> list[Any]:
        """Compares fields of new items with those of the table, or publishes the first ones.

        Returns:
          The columns in the order of the table.

        Raises:
          SignatureMismatchError: If the items have other fields.
        """
        known, self._unconfirmed = self._known, None
        if known is None or known.signature_shapes is not None:
            known = self._published()
        order = None if known is None else known.order_of(fields, self._access.table)
        fields = fields.in_order(order)
        if known is None:
            self._publish(fields)
            known = fields
        elif known.signature_shapes is not None:
            # The server may still refuse the items.
            self._unconfirmed = fields
            known = fields
        known.check(fields, self._access.table)
        if known.dim_names is not None and known.dim_names != fields.dim_names:
            known = known.without_dim_names()
            self._publish(known)
        if self._unconfirmed is None:
            self._known = known
        return columns if order is None else [columns[at] for at in order]

    def confirm(self) -> None:
        """Publishes fields that came only from a signature, after the server has accepted items."""
        fields, self._unconfirmed = self._unconfirmed, None
        if fields is not None:
            self._publish(fields)
            self._known = fields

    def of_items(self) -> Fields:
        """Returns the fields of the items.

        Raises:
          InvalidArgumentError: If no process has published them.
        """
        if self._known is None or self._known.dim_names is not None:
            # Another writer may have published other names of dimensions meanwhile.
            self._known = self._published() or self._known
        if self._known is None:
            access = self._access
            raise InvalidArgumentError(
                f"the names of the fields of table {access.table} are unknown: it has no "
                f"signature, and server {access.address} has no table "
                f"{fields_table(access.table)} with the names. Make both with "
                "reverb.adapters.torchrl.tables, or give the table a dict as its signature"
            )
        return self._known

    # ---- Time ------------------------------------------------------------------------------------

    @property
    def lack_time(self) -> bool:
        """Whether a batch must show which columns are sequences, because a signature does not."""
        if self._known is None:
            self._known = self._published()
        is_signature = self._known is not None and self._known.signature_shapes is not None
        return is_signature and self._have_time is None

    def learn_time(self, have_time: list[bool]) -> None:
        """Stores which columns are sequences."""
        self._have_time = have_time

    def have_time(self, fields: Fields, num_dims: list[int]) -> list[bool]:
        """Whether columns are sequences; see `Fields.have_time`."""
        if fields.signature_shapes is not None and self._have_time is not None:
            return self._have_time
        return fields.have_time(num_dims)

    # ---- Table -----------------------------------------------------------------------------------

    def _published(self) -> Fields | None:
        access, name = self._access, fields_table(self._access.table)
        with access.naming_table():
            infos = access.client.server_info()
            if name in infos:
                for sample in access.client.scan(name):
                    text = np.asarray(sample.data[0]).reshape(-1)[0]
                    return Fields.of_json(text.decode() if isinstance(text, bytes) else str(text))
        signature = infos[access.table].signature
        return None if signature is None else Fields.of_signature(signature)

    def _publish(self, fields: Fields) -> None:
        """Replaces the content of the table of fields, if there is one."""
        access, name = self._access, fields_table(self._access.table)
        with access.naming_table():
            if name in access.client.server_info():
                text = np.array(fields.to_json().encode())
                access.client.insert([text], {name: 1.0})
