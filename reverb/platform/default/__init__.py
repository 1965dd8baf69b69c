# SPDX-License-Identifier: Apache-2.0
"""Import paths: `checkpointers`, `ensure_tf_install` and `server_main_command_line_args`."""
