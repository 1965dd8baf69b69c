# SPDX-License-Identifier: Apache-2.0
"""The tests of samples and scans, over a Unix socket."""

from support.other_rooms import room_tests

globals().update(room_tests("reading.test_failed_batches"))
globals().update(room_tests("reading.test_sampling"))
globals().update(room_tests("reading.test_scan"))
