"""docs/scale.md says what was measured, and nothing else."""

from pathlib import Path

from bench.pipeline.figures import Figures
from bench.pipeline.scale import BEGIN, BROKER_FIGURES, END, FIGURES, PAGE, block, broker_ns


def test_the_figures_of_the_page_are_those_of_the_last_run() -> None:
    written = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert written.strip() == block(Figures.read_json(FIGURES), broker_ns(BROKER_FIGURES)).strip(), (
        "run: python -m bench.pipeline.scale"
    )


def test_figures_survive_being_written(tmp_path: Path) -> None:
    figures = Figures.read_json(FIGURES)
    figures.write_json(tmp_path / "results.json")
    assert Figures.read_json(tmp_path / "results.json") == figures
