# SPDX-License-Identifier: Apache-2.0
"""Old import path of `reverb_config_pb2`."""
