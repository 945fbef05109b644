"""How a time is taken: the slope between two run lengths, contenders interleaved, CPU time of one core."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Timed:
    """A run with the two lengths, in rounds, between which its slope is taken."""

    run: Callable[[int], np.ndarray]
    local_steps: int
    short: int
    long: int

    def warm_up(self) -> float:
        """Compile both lengths; the CPU seconds that the first call took longer than the second."""
        first = measure(self.run, self.short)
        self.run(self.long)
        return float((first - measure(self.run, self.short))[0])

    def slope(self) -> np.ndarray:
        """Marginal µs per step: (CPU, wall). Set-up and compilation cancel; the first run warms what others cooled."""
        self.run(self.short)
        seconds = measure(self.run, self.long) - measure(self.run, self.short)
        return 1e6 * seconds / ((self.long - self.short) * self.local_steps)


def timed(run, local_steps: int, us_per_step: float, seconds: float) -> Timed:
    """Choose lengths, powers of two, such that the long run takes about `seconds` if a step takes `us_per_step`."""
    rounds = seconds * 1e6 / (us_per_step * local_steps)
    long = max(4, 2 ** round(np.log2(rounds)))
    return Timed(run, local_steps, long // 4, long)


def measure(run, rounds: int) -> np.ndarray:
    """Seconds of one run: (CPU, wall); a run in another process measures itself."""
    if hasattr(run, "measure"):
        return run.measure(rounds)
    cpu, wall = time.process_time(), time.perf_counter()
    run(rounds)
    return np.array([time.process_time() - cpu, time.perf_counter() - wall])


def interleaved(contenders: dict, repetitions: int) -> dict:
    """Slopes of every contender, (repetitions, 2); each repetition times all of them in turn."""
    slopes = [[one.slope() for one in contenders.values()] for _ in range(repetitions)]
    return dict(zip(contenders, np.swapaxes(slopes, 0, 1), strict=True))


def medians(slopes: dict) -> dict:
    """Median CPU µs per step of each contender."""
    return {name: float(np.median(values[:, 0])) for name, values in slopes.items()}
