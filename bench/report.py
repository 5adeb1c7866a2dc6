"""The figures as a table for people and as bench/results/latest.json for machines."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.measure import FIGURES, Case, Figure, Ratio

LATEST = Path(__file__).parent / "results" / "latest.json"


@dataclass(frozen=True, slots=True)
class Result:
    """One ratio. A rate should be at least its goal, CPU at most."""

    name: str
    value: float
    unit: str
    goal: float | None
    ok: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """A case on one engine, with what came out."""

    flavour: str
    case: Case
    ratios: dict[Figure, Ratio]

    def result(self, figure: Figure) -> Result:
        value, goal = round(self.ratios[figure].value, 3), self.case.goals.get(figure)
        reached = goal is None or (value >= goal if figure == "rate" else value <= goal)
        name = f"{self.flavour}: {self.case.name}: {figure}"
        return Result(name, value, "ours/bare", goal, reached)

    def results(self) -> list[Result]:
        return [self.result(figure) for figure in FIGURES]


def write(results: Iterable[Result]) -> None:
    LATEST.parent.mkdir(exist_ok=True)
    LATEST.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")
    print(f"written to {LATEST}")


def show(measured: list[Measured]) -> None:
    table = Table(title="ours / bare (quartiles of the rounds). Rate: more is better. CPU: less is better.")
    for heading in ("engine", "case", *FIGURES):
        table.add_column(heading, overflow="fold")
    for each in measured:
        table.add_row(each.flavour, each.case.name, *(_cell(each, figure) for figure in FIGURES))
    console = Console(width=140)
    console.print(table)
    missed = [result for each in measured for figure in FIGURES if not (result := each.result(figure)).ok]
    for result in missed:
        bound = "at least" if result.name.endswith("rate") else "at most"
        console.print(
            f"[red]goal missed[/red]  {result.name} is {result.value:.2f}, want {bound} {result.goal}"
        )
    if not missed:
        console.print("[green]every goal reached[/green]")


def _cell(each: Measured, figure: Figure) -> str:
    ratio, result = each.ratios[figure], each.result(figure)
    text = f"{ratio.value:.2f} ({ratio.low:.2f}..{ratio.high:.2f})"
    if result.goal is None:
        return text
    colour, verdict = ("green", "ok") if result.ok else ("red", "MISSED")
    sign = ">=" if figure == "rate" else "<="
    return f"[{colour}]{text} {sign}{result.goal:.2f} {verdict}[/{colour}]"
