"""Chain-steps a second of fsgld on whatever device JAX finds, over numbers of chains.

`python -m benchmarks.chains --workloads W1,W4 --chains 1,10,1000`. The slope between two run lengths, so that set-up
and compilation are excluded, by the public API.
"""

import argparse
import time

import jax

import fsgld
from fsgld.rows import gather

from .workloads import WORKLOADS, log_prior


def chain_steps_a_second(w, chains: int, rounds: int) -> float:
    """Run for `rounds` and for three times as many rounds, each twice, and take the slope of the second times."""
    model = fsgld.Model(log_prior, w.log_likelihood, w.init)
    surrogates = [fsgld.Gaussian(*q_s) for q_s in zip(w.shift, w.precision, strict=True)]
    shards = gather(w.shards)

    def seconds(length: int) -> float:
        result = fsgld.sample(
            model, shards, surrogates, dynamics=fsgld.langevin(w.step_size), likelihood=fsgld.plain,
            batch_size=w.batch_size, local_steps=w.local_steps, rounds=length, chains=chains, burn_in=0, progress=False,
            thin=w.local_steps * length,
        )  # fmt: skip
        return result.timings["compile_and_first_call"] + result.timings["further_calls"]

    short, long = (min(seconds(n) for _ in range(3)) for n in (rounds, 3 * rounds))
    return 2 * rounds * w.local_steps * chains / (long - short)


def main() -> None:
    """Print a line for every workload and number of chains."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chains", description=__doc__)
    parser.add_argument("--workloads", default="W1,W4")
    parser.add_argument("--chains", default="1,10,100,1000")
    parser.add_argument("--rounds", type=int, default=128, help="rounds of the shorter run")
    args = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    for name in args.workloads.split(","):
        w = WORKLOADS[name]()
        for chains in map(int, args.chains.split(",")):
            begin = time.perf_counter()
            speed = chain_steps_a_second(w, chains, args.rounds)
            print(
                f"{name} {chains:>7} chains {speed:.3g} chain-steps/s ({time.perf_counter() - begin:.0f} s)", flush=True
            )


if __name__ == "__main__":
    main()
