# SPDX-License-Identifier: Apache-2.0
"""Private: checks of what comes from outside: arguments, answers, sizes, files."""
