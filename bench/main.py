"""Measures headrace and its peers on this machine and writes bench/results.md, results.json and results.png."""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench import show
from bench.brokers import Variant, all_variants
from bench.build import BuildError, load_program
from bench.machine import describe
from bench.measure import RunError, measure
from bench.pipeline import main as pipeline
from bench.plan import Figure, Plan, Scenario, full_plan, quick_plan
from bench.plot import draw
from bench.report import write_report
from bench.results import Results, rate_text
from bench.storage import measure_storage

HERE = Path(__file__).resolve().parent
SCRATCH = HERE / "out"
OURS = "headrace"
LOAD_AVERAGE_MAX = 0.7


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench/run.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one to two minutes: fewer peers, one short run of each")
    parser.add_argument("--only", metavar="NAME", action="append", help="only scenarios whose name starts so")
    parser.add_argument("--variant", metavar="NAME", action="append", help="only these brokers, by name")
    parser.add_argument("--seconds", type=float, metavar="N", help="length of a run (2; 1 with --quick)")
    parser.add_argument("--repeats", type=int, metavar="N", help="runs of each variant (3; 1 with --quick)")
    parser.add_argument(
        "--data-dir", type=Path, default=SCRATCH, help="where brokers keep their files: the disk to test"
    )
    parser.add_argument("--output", type=Path, default=HERE, help="where results.md, .json and .png go")
    parser.add_argument("--list", action="store_true", help="print scenarios and brokers, and stop")
    return parser.parse_args(arguments)


def planned(options: argparse.Namespace) -> Plan:
    """The plan the command line asks for."""
    if options.quick:
        plan = quick_plan(options.seconds or 1.0, options.repeats or 1)
    else:
        plan = full_plan(options.seconds or 2.0, options.repeats or 3)
    if not options.only:
        return plan
    wanted = tuple(options.only)
    return replace(
        plan,
        scenarios=tuple(scenario for scenario in plan.scenarios if scenario.name.startswith(wanted)),
        storages=tuple(storage for storage in plan.storages if storage.name.startswith(wanted)),
    )


def available(options: argparse.Namespace) -> dict[str, Variant]:
    """The brokers to measure; says which are missing and how to get them."""
    found = {}
    missing = set()
    for name, variant in all_variants().items():
        if options.variant and name not in options.variant:
            continue
        if variant.installed:
            found[name] = variant
        else:
            missing.add(variant.package)
    for package in sorted(missing):
        print(f"{package} is not installed, so not compared: apt install {package}")
    return found


class Bench:
    """One invocation: runs the plan, keeps the results."""

    def __init__(self, plan: Plan, variants: dict[str, Variant], program: Path, scratch: Path) -> None:
        self._plan, self._variants, self._program, self._scratch = plan, variants, program, scratch
        self.results = Results(machine=describe(scratch))
        self.results.titles = {name: variant.title for name, variant in variants.items()}

    def run(self) -> None:
        """Measure everything, turn by turn; a run that fails is reported and the rest goes on."""
        with show.steps(self._step_count()) as steps:
            for turn in range(self._plan.repeats):
                for scenario in self._plan.scenarios_of(turn):
                    for variant in self._of(scenario):
                        self._scenario_step(steps, scenario, variant, turn)
            if OURS in self._variants:
                self._storage_steps(steps)

    def _step_count(self) -> int:
        runs = sum(self._plan.repeats_of(scenario) * len(self._of(scenario)) for scenario in self._plan.scenarios)
        return runs + (len(self._plan.storages) if OURS in self._variants else 0)

    def _of(self, scenario: Scenario) -> list[Variant]:
        return [self._variants[name] for name in scenario.variants if name in self._variants]

    def _scenario_step(self, steps: show.Steps, scenario: Scenario, variant: Variant, turn: int) -> None:
        what = f"{scenario.name} {variant.name} {turn + 1}"
        steps.begin(what)
        latency = scenario.figure is Figure.LATENCY
        if latency:
            os.sync()
            self.results.disk.measure(self._scratch, self._plan.disk_s)
        try:
            sample = measure(self._program, scenario, variant, self._scratch, self._plan.seconds)
        except RunError as error:
            self.results.failures.append(f"{what}: {error}")
            steps.end(what, f"failed: {error}")
            return
        self.results.add(scenario, variant.name, sample)
        value = sample.value(scenario.figure)
        steps.end(what, f"p99 {value / 1e3:.2f} ms" if latency else rate_text(value))

    def _storage_steps(self, steps: show.Steps) -> None:
        for storage in self._plan.storages:
            steps.begin(storage.name)
            try:
                sample = measure_storage(self._program, storage, self._variants[OURS], self._scratch)
            except RunError as error:
                self.results.failures.append(f"{storage.name}: {error}")
                steps.end(storage.name, f"failed: {error}")
                continue
            self.results.storage[storage.title] = sample
            steps.end(
                storage.name, f"{sample.resident_mib:.0f} MiB, start after kill -9 {sample.start_after_kill_s:.2f} s"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and report; 1 when the load client cannot be built or a run gave no figures."""
    options = parse(arguments)
    plan, variants = planned(options), available(options)
    tables = pipeline.planned(quick=options.quick, only=options.only, repeats=options.repeats)
    if options.list:
        for scenario in plan.scenarios:
            print(f"{scenario.name:<14} {scenario.title}: {', '.join(scenario.variants)}")
        for storage in plan.storages:
            print(f"{storage.name:<14} backlog of {storage.title}: headrace")
        for name in tables.names:
            print(f"{pipeline.PREFIX}{name}")
        return 0
    try:
        program = load_program()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    if os.getloadavg()[0] > LOAD_AVERAGE_MAX:
        print(f"this machine is busy (load average {os.getloadavg()[0]:.1f}): the figures will be too low")
    options.data_dir.mkdir(parents=True, exist_ok=True)
    complete = True
    if plan.scenarios or plan.storages:
        complete = run_brokers(plan, variants, program, options)
    if tables.names:
        complete &= pipeline.run_pipeline(tables, program, options.data_dir, pipeline_output(tables, options))
    return 0 if complete else 1


def pipeline_output(plan: pipeline.Plan, options: argparse.Namespace) -> Path:
    """Where the pipeline's results go; those of a part or of a quick run do not replace those of a whole one."""
    if options.output != HERE:
        return Path(options.output, "pipeline")
    whole = plan.names == pipeline.NAMES and not options.quick
    return pipeline.OUTPUT if whole else SCRATCH / "pipeline"


def run_brokers(plan: Plan, variants: dict[str, Variant], program: Path, options: argparse.Namespace) -> bool:
    """Measure the brokers and write everything; whether every run gave figures."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.data_dir) as scratch:
        bench = Bench(plan, variants, program, Path(scratch))
        bench.run()
    results = bench.results
    show.summary(results)
    if results.samples or results.storage:
        options.output.mkdir(parents=True, exist_ok=True)
        results.write_json(options.output / "results.json")
        draw(results, options.output / "results.png")
        write_report(results, options.output / "results.md")
        print(f"written: {options.output}/results.md, results.json, results.png")
    return not results.failures
