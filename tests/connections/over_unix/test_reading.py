# SPDX-License-Identifier: Apache-2.0
"""What is promised of samples and scans holds over a Unix socket: the same tests."""

from support.other_rooms import room_tests

globals().update(room_tests("reading.test_failed_batches"))
globals().update(room_tests("reading.test_sampling"))
globals().update(room_tests("reading.test_scan"))
