"""docs/experiments.md shows what tools/seed_facts.py prints.

Usage: experiments_page_test.py REPOSITORY
"""

import pathlib
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
command = ["tools/seed_facts.py", "data/seed_step_times.csv"]
printed = subprocess.run([sys.executable, *command], cwd=root, check=True, text=True, capture_output=True).stdout.rstrip()
if f"$ {' '.join(command)}\n{printed}\n" not in (root / "docs" / "experiments.md").read_text():
    sys.exit(f"docs/experiments.md does not show this output of {' '.join(command)}:\n{printed}")
