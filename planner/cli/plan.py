"""`autopar plan`: from a model file to a plan file."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import replace
from time import perf_counter

import click

from planner.cli.limits import MOST_GIB, MOST_GPUS, MOST_SAMPLES, MOST_SECONDS, Amount
from planner.cli.mesh_degrees import MeshDegrees
from planner.cli.precision import CHOICES
from planner.ir.options import RECOMPUTE, SCHEDULES


@click.command(short_help="Plan a model: from a model file to a plan file.")
@click.argument("target")
@click.option("--gpus", type=click.IntRange(1, MOST_GPUS), required=True, metavar="N", help="Devices to plan for.")
@click.option("--cluster", metavar="NAME|FILE", help="A preset, or a JSON file that describes the machine. [default: the GPUs here, or h100]")
@click.option("--gpus-per-node", type=click.IntRange(1, MOST_GPUS), metavar="N", help="Devices per node. [default: the cluster's]")
@click.option("-o", "--output", default="plan.json", show_default=True, metavar="FILE", help="Where the plan goes.")
@click.option("--global-batch", type=click.IntRange(1, MOST_SAMPLES), metavar="N", help="Samples per step. [default: 8 per device]")
@click.option("--mesh", type=MeshDegrees(), default=(), metavar="AXIS=N,...", help="Fixes degrees, as in pp=2,tp=2.")
@click.option("--memory-gib", type=Amount(MOST_GIB), metavar="X", help="Memory to use per device, at most.")
@click.option("--recompute", type=click.Choice(RECOMPUTE), default="auto", show_default=True, help="Recompute blocks in backward.")
@click.option("--schedule", type=click.Choice(SCHEDULES), default="auto", show_default=True, help="The pipeline schedule.")
@click.option(
    "--precision",
    type=click.Choice(tuple(CHOICES)),
    default="auto",
    show_default=True,
    help="What forward and backward compute in; auto is bf16 for fp32 models on GPUs, else what the model is in.",
)
@click.option("--zero", type=click.IntRange(0, 3), metavar="LEVEL", help="Fixes the ZeRO level: 0 replicates, 3 shards parameters too.")
@click.option("--max-seconds", type=Amount(MOST_SECONDS), metavar="S", help="Ends the search with the best plan so far.")
@click.option("--json", "as_json", is_flag=True, help="Prints the plan file instead of tables.")
def plan(
    target: str,
    gpus: int,
    cluster: str | None,
    gpus_per_node: int | None,
    output: str,
    global_batch: int | None,
    mesh: tuple[tuple[str, int], ...],
    memory_gib: float | None,
    recompute: str,
    schedule: str,
    precision: str,
    zero: int | None,
    max_seconds: float | None,
    as_json: bool,
) -> None:
    """Finds the fastest plan that fits for TARGET: model.py, model.py:factory or a Hugging Face config.json.

    This runs the code in model.py. No GPU is needed.
    """
    from planner.cli.machine import choose
    from planner.cli.output import check_kept
    from planner.cli.precision import built_once, compute_dtype, stored_dtype
    from planner.cli.progress import shown_progress
    from planner.cli.provenance import with_provenance
    from planner.cli.warnings import warnings
    from planner.driver import make_plan
    from planner.ir import plan_json
    from planner.ir.options import Options
    from planner.report.console import print_json, print_plan
    from planner.runtime.split import why_not
    from planner.search.candidates import check_options
    from planner.trace.load import load
    from planner.trace.trace import trace

    plan_json.check_writable(output)
    check_kept(output, inputs=(target.rpartition(".py:")[0] + ".py" if ".py:" in target else target, cluster))
    machine = choose(cluster, gpus=gpus, gpus_per_node=gpus_per_node)
    click.echo(machine, err=as_json)
    options = Options(
        global_batch=global_batch,
        mesh=mesh,
        memory_bytes=None if memory_gib is None else max(1, int(memory_gib * 2**30)),
        recompute=recompute,
        schedule=schedule,
        zero=zero,
        max_seconds=max_seconds or 0.0,
    )
    check_options(options, devices=gpus)
    with shown_progress() as progress, redirect_stdout(sys.stderr):  # what the user's code prints is no result
        progress("trace", 0, 1)
        started = perf_counter()
        source = built_once(load(target))
        dtype = compute_dtype(precision, stored=stored_dtype(source), backend=machine.cluster.backend)
        family = trace(source, compute_dtype=dtype)
        trace_s = perf_counter() - started
        made = make_plan(family, machine.cluster, options, progress=progress)
        if made.mesh.pp > 1 and (reason := why_not(source.model(), made)):
            made = make_plan(family, machine.cluster, replace(options, cannot_cut=reason), progress=progress)
        found = plan_json.canonical(with_provenance(made, target=target, trace_s=trace_s))
    for warning in warnings(family):
        click.echo(f"warning: {warning}", err=True)
    plan_json.save(found, output)
    if as_json:
        print_json(found)
        click.echo(f"wrote {output}", err=True)
        return
    print_plan(found)
    click.echo(f"\nwrote {output}")
