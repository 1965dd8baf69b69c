# SPDX-License-Identifier: Apache-2.0
"""Why calls for a table wait is told to callers with any right on that table."""

import pytest

import reverb
from reverb.core import protos
from reverb.errors import TableNotFoundError


@pytest.mark.parametrize("right", ["insert", "sample", "update", "admin"])
def test_any_right_on_the_table_is_enough(right, secure, tokens):
    token = tokens.add("somebody", right, "mine")
    mine, other = reverb.Table.queue("mine", 1), reverb.Table.queue("other", 1)
    secured = secure(mine, other, tokens=tokens.path)
    client = secured.client(token=token)._client

    def ask(table):
        request = protos.WaitReasonRequest(table=table).SerializeToString()
        return protos.WaitReasonResponse.FromString(client.call("WaitReason", request))

    answer = ask("mine")
    assert answer.table.name == "mine"
    assert answer.table.diagnosis.sentence == "No requests: no insert yet, no sample yet."
    # A table of others is told from one that is not there by nothing.
    errors = []
    for table in ("other", "nothing"):
        with pytest.raises(TableNotFoundError) as caught:
            ask(table)
        errors.append(str(caught.value).replace(table, "TABLE"))
    assert errors[0] == errors[1]
    assert "mine" in errors[0]
