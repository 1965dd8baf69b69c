# SPDX-License-Identifier: Apache-2.0
"""Old import path of `checkpoint_pb2`."""
