"""The sections of the report. Each measures, prints its lines, and returns numbers and goals."""

import json
import subprocess
import sys
from dataclasses import replace

from . import goals
from .apart import Apart
from .contenders.everyone import CONTENDERS
from .goals import Goal
from .timing import interleaved, medians, timed
from .workloads import WORKLOADS, toy

WITH_OPTIONS = "BlackJAX, our options"  # with what fsgld tells XLA's compiler; "BlackJAX" is without
TIMED = {**CONTENDERS, "BlackJAX": Apart, WITH_OPTIONS: CONTENDERS["BlackJAX"]}

# µs per step, roughly: only to choose run lengths.
EXPECTED = {
    "eager PyTorch": {"W1": 450, "W2": 450, "W3": 600, "W4": 1500},
    "posteriors": {"W1": 900, "W2": 950, "W3": 1300, "W4": 2800},
    "BlackJAX": {"W1": 3, "W2": 5, "W3": 18, "W4": 30},
    WITH_OPTIONS: {"W1": 0.5, "W2": 4, "W3": 11, "W4": 28},
    "C": {"W1": 0.011, "W2": 0.38, "W3": 1.5, "W4": 5.4},
    "fsgld": {"W1": 0.06, "W2": 0.9, "W3": 5, "W4": 12},
}


def table(names, repetitions, seconds):
    """µs per step of all contenders, fsgld's ratios, and its compile time."""
    times, compile_seconds, reached = {}, {}, []
    for name in names:
        w = WORKLOADS[name]()
        runs = {who: timed(make(w), w.local_steps, EXPECTED[who][name], seconds) for who, make in TIMED.items()}
        compile_seconds[name] = {who: run.warm_up() for who, run in runs.items()}
        times[name] = medians(interleaved(runs, repetitions))
        print(name, "  ".join(f"{who} {us:.4g}" for who, us in times[name].items()), flush=True)
        reached += ratios(name, times[name])
        reached.append(Goal(f"{name} compile, seconds", compile_seconds[name]["fsgld"], goals.COMPILE_SECONDS))
    print_table(times)
    return {"us_per_step": times, "compile_seconds": compile_seconds}, reached


def ratios(name, us):
    """fsgld against eager PyTorch, BlackJAX and C."""
    return [
        Goal(f"{name} × eager PyTorch", us["eager PyTorch"] / us["fsgld"], goals.TIMES_EAGER[name], True),
        Goal(f"{name} × BlackJAX", us["BlackJAX"] / us["fsgld"], goals.TIMES_BLACKJAX, True),
        Goal(f"{name} % of C", 100 * us["C"] / us["fsgld"], goals.PERCENT_OF_C[name], True),
    ]


def print_table(times):
    print("\nµs per step, one chain of FSGLD\n" + f"{'':<22}" + "".join(f"{name:>10}" for name in times))
    for who in TIMED:
        print(f"{who:<22}" + "".join(f"{us[who]:>10.4g}" for us in times.values()))


def surrogates(names, repetitions, seconds):
    """FSGLD against DSGLD with diagonal surrogates."""
    times, reached = {}, []
    for name in sorted({"W1", "W4"} & set(names)):
        w = WORKLOADS[name]()
        both = {"FSGLD": w, "DSGLD": replace(w, shift=None, precision=None)}
        times[name] = us = library_medians(both, repetitions, seconds)
        reached.append(Goal(f"{name} FSGLD / DSGLD", us["FSGLD"] / us["DSGLD"], goals.FSGLD_TO_DSGLD))
    return {"us_per_step": times}, reached


def clients(repetitions, seconds, rows=100_000):
    """Cost per step from 10 to 10,000 clients with the same rows."""
    workloads = {f"S={s}": toy(s, rows // s, step_size=2e-6) for s in (10, 100, 1000, 10_000)}
    us = library_medians(workloads, repetitions, 4 * seconds)  # long: 10,000 clients take over a second to set up
    print("\nclients: µs per step " + "  ".join(f"{name} {value:.4g}" for name, value in us.items()))
    spread = max(us.values()) / min(us.values())
    return {"us_per_step": us}, [Goal("10 to 10,000 clients, slowest / fastest", spread, goals.CLIENTS_SPREAD)]


def library_medians(workloads, repetitions, seconds):
    """Median µs per step of fsgld on several workloads, interleaved."""
    make, expected = CONTENDERS["fsgld"], EXPECTED["fsgld"]
    runs = {key: timed(make(w), w.local_steps, expected[w.name], seconds) for key, w in workloads.items()}
    for run in runs.values():
        run.warm_up()
    return medians(interleaved(runs, repetitions))


def memory():
    """Peak memory of a W4 run in a fresh process, in units of the data, the user's arrays included.

    W4's clients have parts of large arrays; if they have arrays of their own, fsgld puts these together in a copy. JAX
    and its compiler take memory whatever the data, so the growth from a run on few rows is shown apart.
    """
    few, many, apart = (_peak(*words) for words in (("900",), ("90000",), ("90000", "apart")))
    growth = [(run["peak"] - few["peak"]) / (run["data"] - few["data"]) for run in (many, apart)]
    whole = [(run["peak"] - run["before"]) / run["data"] for run in (many, apart)]
    print(
        f"\nmemory: {(few['peak'] - few['before']) / 2**20:.0f} MiB with few rows; {growth[0]:.2f} × the data more if"
        f" clients have parts of large arrays, {growth[1]:.2f} × if they have arrays of their own"
    )
    goals_met = [
        Goal("W4 peak memory / data", whole[0], goals.MEMORY),
        Goal("the same, clients with arrays of their own", whole[1], goals.MEMORY),
    ]
    return {"few": few, "many": many, "apart": apart}, goals_met


def _peak(*words: str) -> dict:
    """Run `benchmarks.memory` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", *words]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
