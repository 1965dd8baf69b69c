# SPDX-License-Identifier: Apache-2.0
"""The program of `reverb_server`, with a table `t`."""

CONFIG = """
tables: {
  table_name: "t"
  sampler: { fifo: true }
  remover: { fifo: true }
  max_size: 20
  rate_limiter: { min_size_to_sample: 1 samples_per_insert: 1 min_diff: -1e300 max_diff: 1e300 }
}
"""
COMMAND = """
from reverb.server_executable import server_main
server_main.app_run_main()
"""
