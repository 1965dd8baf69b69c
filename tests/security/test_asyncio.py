# SPDX-License-Identifier: Apache-2.0
"""The client of asyncio programs takes certificates and tokens as the blocking one does."""

import asyncio

import pytest

from reverb import aio
from reverb.errors import UnauthenticatedError
from support.waiting import DEADLINE_S


def test_certificates_and_tokens(secure, tokens):
    right = tokens.add("right", "sample,insert,update,admin")
    secured = secure(tokens=tokens.path)

    async def insert_and_sample(token):
        options = {"connect_timeout_s": DEADLINE_S, "tls": secured.tls, "token": token}
        async with aio.Client(secured.address, **options) as client:
            await client.insert([1.0], {"table": 1.0})
            return (await client.sample_batch("table", 1)).data[0].tolist()

    assert asyncio.run(insert_and_sample(right)) == [[1.0]]
    with pytest.raises(UnauthenticatedError):
        asyncio.run(insert_and_sample(None))
