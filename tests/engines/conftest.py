"""These tests start real engines: only where they are asked for, by `make test-engines`."""

import os

collect_ignore_glob = [] if os.environ.get("SPECBENCH_TEST_ENGINES") else ["test_*.py"]
