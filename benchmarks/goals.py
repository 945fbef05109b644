"""The goals of the speed table, and a line that says whether one is met."""

from dataclasses import dataclass

TIMES_EAGER = {"W1": 4000, "W2": 300, "W3": 50, "W4": 60}
TIMES_BLACKJAX = 2.5
PERCENT_OF_C = {"W1": 20, "W2": 40, "W3": 28, "W4": 40}
FSGLD_TO_DSGLD = 1.25
CLIENTS_SPREAD = 1.2
MEMORY = 2.0
COMPILE_SECONDS = 3.0


@dataclass(frozen=True)
class Goal:
    """A measured value beside its bound: a lower bound if `at_least`, else an upper one."""

    what: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{self.what:<44} {self.value:>9.4g}   goal {sign} {self.bound:<6g} {'met' if self.met else 'NOT MET'}"
