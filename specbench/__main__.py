"""`python -m specbench` is the `specbench` command."""

from specbench.cli import main

raise SystemExit(main())
