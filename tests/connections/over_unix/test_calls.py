# SPDX-License-Identifier: Apache-2.0
"""The tests of a client's calls, over a Unix socket."""

from support.other_rooms import room_tests

globals().update(room_tests("api.test_client"))
