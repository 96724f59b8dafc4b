"""Duration of a step, as a function of its plan alone. Never reads a clock."""

from dataclasses import dataclass

from ridgeline.core.plan import Plan


@dataclass(frozen=True, slots=True)
class Latency:
    """`step_seconds` for every step and `token_seconds` for every token that it computes."""

    step_seconds: float = 0.0
    token_seconds: float = 0.0

    def seconds(self, plan: Plan) -> float:
        """Modelled duration of the plan."""
        return self.step_seconds + self.token_seconds * len(plan.tokens)
