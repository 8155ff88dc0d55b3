"""How long planning takes, from the start of the command to the written file, and how much memory.

Each run is a process of its own: `python -m autopar plan ...`. Reported per case: the median wall time over the runs with the slowest run
beside it, the CPU time, the largest resident set, and the seconds by phase that the plan's provenance states (what they leave of the wall
time is starting Python, importing torch and writing the file). The file cache is warm after the first run.

    python benchmarks/plan_time.py [--repeat 3] [--only llama_8b] [--json benchmarks/results/plan_time.json]
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
MEMORY_LIMIT_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True)
class Case:
    """What is planned, and the wall time that it shall stay under on two cores."""

    name: str
    target: str
    gpus: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """One process: wall and CPU seconds, peak resident bytes, and seconds by phase."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    phases_s: tuple[tuple[str, float], ...]


CASES = (
    Case("gpt2_small/8", "benchmarks/models/gpt.py:gpt2_small", 8, 8.0),
    Case("llama_8b/64", "benchmarks/models/llama.py:llama_8b", 64, 10.0),
    Case("llama_405b/1024", "benchmarks/models/llama.py:llama_405b", 1024, 20.0),
)


@click.command()
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Processes per case.")
@click.option("--cluster", default="h100", show_default=True)
@click.option("--only", default="", help="Cases whose name contains this.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Also writes the runs to this file.")
def main(repeat: int, cluster: str, only: str, json_path: Path | None) -> None:
    """Times `autopar plan` from cold start to written file."""
    load = os.getloadavg()[0]
    click.echo(f"{os.cpu_count()} cores; {load:.1f} processes were running already: above 0.5, wall times say little", err=True)
    results = {case: [measure(case, cluster) for _ in range(repeat)] for case in CASES if only in case.name}
    show(results)
    if json_path:
        json_path.write_text(json.dumps(document(results, cluster, load), indent=1) + "\n", encoding="utf-8")
        click.echo(f"wrote {json_path}")


def measure(case: Case, cluster: str) -> Run:
    """Plans `case` in a new process; a plan that fails ends the benchmark with the planner's own message."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        command = [sys.executable, "-m", "autopar", "plan", case.target, "--gpus", str(case.gpus), "--cluster", cluster, "-o", str(plan)]
        with open(Path(folder) / "output", "w+", encoding="utf-8") as output:
            started = time.perf_counter()
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - started
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                output.seek(0)
                raise click.ClickException(f"{' '.join(command)} ended with {process.returncode}:\n{output.read()}")
        provenance = json.loads(plan.read_text(encoding="utf-8"))["provenance"]
    phases = tuple((key, float(value)) for key, value in provenance.items() if key.endswith("_s"))
    return Run(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, phases)


def show(results: dict[Case, list[Run]]) -> None:
    table = Table("case", "wall s", "slowest s", "limit s", "CPU s", "peak GiB", "phases s", "", box=None)
    for case, runs in results.items():
        middle = sorted(runs, key=lambda run: run.wall_s)[len(runs) // 2]
        wall_s = median(run.wall_s for run in runs)
        peak_bytes = max(run.peak_bytes for run in runs)
        table.add_row(
            case.name,
            f"{wall_s:.1f}",
            f"{max(run.wall_s for run in runs):.1f}",
            f"{case.limit_s:.0f}",
            f"{median(run.cpu_s for run in runs):.1f}",
            f"{peak_bytes / 2**30:.2f}",
            "  ".join(f"{name.removesuffix('_s')} {seconds:.2f}" for name, seconds in middle.phases_s),
            "within" if wall_s <= case.limit_s and peak_bytes <= MEMORY_LIMIT_BYTES else "OVER",
        )
    Console(width=max(Console().width, 120)).print(table)


def document(results: dict[Case, list[Run]], cluster: str, load: float) -> dict[str, object]:
    """All runs, the machine they ran on, and how many processes ran there before."""
    machine = {
        "cores": os.cpu_count(),
        "load_average": load,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": version("torch"),
    }
    cases = [asdict(case) | {"runs": [asdict(run) | {"phases_s": dict(run.phases_s)} for run in runs]} for case, runs in results.items()]
    return {"benchmark": "plan_time", "machine": machine, "cluster": cluster, "memory_limit_bytes": MEMORY_LIMIT_BYTES, "cases": cases}


if __name__ == "__main__":
    main()
