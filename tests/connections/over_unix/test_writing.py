# SPDX-License-Identifier: Apache-2.0
"""What is promised of writers holds over a Unix socket: the same tests."""

from support.other_rooms import room_tests

globals().update(room_tests("writers.test_all_writers"))
