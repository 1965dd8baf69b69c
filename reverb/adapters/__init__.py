# SPDX-License-Identifier: Apache-2.0
"""What other libraries need from a replay database, over the public `reverb` alone.

`tf_agents` and `acme` have modules named as those of the library that they stand in for: a program
changes an import line. Nothing here is imported by `import reverb`.
"""
