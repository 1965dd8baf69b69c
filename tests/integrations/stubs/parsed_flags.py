# SPDX-License-Identifier: Apache-2.0
"""Lets tests that read flags of absl run under pytest: `pytest -p parsed_flags`.

Their own main program parses the command line first; under pytest every flag has its default.
"""

from absl import flags

flags.FLAGS.mark_as_parsed()
