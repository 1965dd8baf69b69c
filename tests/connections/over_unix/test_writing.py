# SPDX-License-Identifier: Apache-2.0
"""The tests of writers, over a Unix socket."""

from support.other_rooms import room_tests

globals().update(room_tests("writers.test_all_writers"))
