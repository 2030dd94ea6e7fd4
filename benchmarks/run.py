"""Run all benchmarks, one after another, and print their JSON lines.

    make bench                       every benchmark, a few minutes
    make bench ARGS="wrapper_cost"   some of them

Figures that are meant to be compared are ratios taken in one run; absolute ones depend on the
machine. What was seen, where and when is in docs/benchmarks.md.
"""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ALL = (
    *("wrapper_cost", "model_overhead", "agent_cost", "sources", "bandwidth", "wire_bytes"),
    *("proxy_cost", "spool", "ingest"),
)


def main() -> int:
    wanted = sys.argv[1:] or ALL
    unknown = set(wanted) - set(ALL)
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
        return 2
    failed = 0
    for name in wanted:
        print(f"# {name}", file=sys.stderr, flush=True)
        failed |= subprocess.run([sys.executable, str(FOLDER / f"{name}.py")]).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
