"""The speed report: `python -m benchmarks.run`, or `make bench`. See README.md beside this file."""

import argparse
import json
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path

from . import CORE, sections
from .check import check
from .workloads import WORKLOADS


def arguments():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="which of W1,W2,W3,W4 (default: all)")
    parser.add_argument("--repetitions", type=int, default=7, help="interleaved repetitions (default: 7)")
    parser.add_argument("--quick", action="store_true", help="short runs, 3 repetitions: for a look, not for a claim")
    parser.add_argument("--check", action="store_true", help="check every contender's arithmetic, time nothing")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results.json"), help="JSON file to write")
    args = parser.parse_args()
    args.workloads = args.workloads.split(",")
    if unknown := set(args.workloads) - set(WORKLOADS):
        parser.error(f"unknown workloads {sorted(unknown)}; choose from {list(WORKLOADS)}")
    return args


def measure(names, repetitions, seconds):
    """Run every section; its numbers by name, and all goals."""
    results = {
        "table": sections.table(names, repetitions, seconds),
        "surrogates": sections.surrogates(names, repetitions, seconds),
        "clients": sections.clients(repetitions, seconds),
        "memory": sections.memory(),
    }
    goals = [goal for _, reached in results.values() for goal in reached]
    return {name: numbers for name, (numbers, _) in results.items()}, goals


def machine():
    """Where the numbers come from."""
    packages = ["jax", "jaxlib", "numpy", "torch", "blackjax", "posteriors"]
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]
    versions = {name: version(name) for name in packages}
    return {"processor": processor, "core": CORE, "python": platform.python_version(), **versions}


def main():
    args = arguments()
    print(f"one core (number {CORE}), CPU time, {machine()['processor']}\n", flush=True)
    if args.check:
        sys.exit(0 if check() else 1)
    repetitions, seconds = (3, 0.1) if args.quick else (args.repetitions, 1.0)
    numbers, goals = measure(args.workloads, repetitions, seconds)
    print("\n" + "\n".join(map(str, goals)))
    record = {"machine": machine(), "repetitions": repetitions, "seconds": seconds, **numbers}
    record["goals"] = [{**vars(goal), "met": bool(goal.met)} for goal in goals]
    args.output.write_text(json.dumps(record, indent=1))
    print(f"\nwritten to {args.output}")


if __name__ == "__main__":
    main()
