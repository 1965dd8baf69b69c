# SPDX-License-Identifier: Apache-2.0
"""What is promised of a client's calls holds over a Unix socket: the same tests."""

from support.other_rooms import room_tests

globals().update(room_tests("api.test_client"))
