# SPDX-License-Identifier: Apache-2.0
"""Runs a test module of TF-Agents under TF-Agents' own handler of processes.

    python multiprocessing_main.py tf_agents.utils.batched_observer_unbatching_test

For files whose tests start environments in processes, but whose main program does not prepare that.
"""

import importlib
import sys


def run_tests():
    import tensorflow as tf

    module = importlib.import_module(MODULE)
    main = sys.modules["__main__"]
    for name, value in vars(module).items():
        if not name.startswith("__"):
            setattr(main, name, value)
    tf.test.main()


MODULE = sys.argv.pop(1)
if __name__ == "__main__":
    from tf_agents.system import system_multiprocessing

    system_multiprocessing.handle_test_main(run_tests)
