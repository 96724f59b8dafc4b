"""`ridgeline laws`: runs the simulator's swarm, shows which rare situations were met, and says whether a law was broken."""

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from ridgeline.sim.laws.reach import SITUATIONS
from ridgeline.sim.laws.swarm import Tally, run_swarm


def laws(
    steps: Annotated[int, typer.Option(min=1, max=1_000_000_000, help="Engine steps to simulate, over all seeds.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="First seed; a violation names the seed that repeats it.")] = 0,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes.")] = 2,
) -> None:
    """Simulate the engine over many random small worlds and check every law after every step."""
    console = Console(highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("simulating", total=steps)
        total = run_swarm(seed, steps, workers, lambda done: progress.advance(bar, done))
    _show(console, total)
    console.print(f"steps {total.steps} violations {len(total.violations)}")
    if total.violations:
        raise typer.Exit(1)


def _show(console: Console, total: Tally) -> None:
    table = Table("situation", "times", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for situation in SITUATIONS:
        table.add_row(situation, f"{total.reached[situation]:,}" if total.reached[situation] else "never")
    console.print(table)
    console.print(
        f"{total.seeds:,} seeds, {total.rows / max(total.steps, 1):.1f} sequences per step, "
        f"{total.grouped / max(total.seeds, 1):.0%} of seeds with several KV groups, "
        f"{total.preempting / max(total.seeds, 1):.0%} with preemption",
        soft_wrap=True,
    )
    for broken in total.violations[:20]:
        console.print(f"seed {broken.seed} step {broken.step}: {broken.message}", soft_wrap=True, markup=False)
        console.print(f"  repeat it: ridgeline laws --seed {broken.seed} --steps {broken.step + 1} --workers 1", soft_wrap=True)
