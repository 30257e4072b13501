"""Which class keeps tables of which format. A format's library is loaded when it is wanted."""

from pathlib import Path

from headrace.spark.lake.layout import FORMATS, Layout
from headrace.spark.lake.store import Step, Store, unwatched
from headrace.spark.lake.table import LakeError, TableSpec


def open_store(lake: Path, form: str, spec: TableSpec, step: Step = unwatched) -> Store:
    """The table of this lake in this format.

    Raises LakeError for an unknown format or one whose library is not installed.
    """
    layout = Layout(lake)
    try:
        match form:
            case "parquet":
                from headrace.spark.lake.parquet import ParquetStore

                return ParquetStore(layout, spec, step)
            case "delta":
                from headrace.spark.lake.delta import DeltaStore

                return DeltaStore(layout, spec, step)
            case "iceberg":
                from headrace.spark.lake.iceberg import IcebergStore

                return IcebergStore(layout, spec, step)
    except ModuleNotFoundError as error:
        raise LakeError(f"{error.name} is missing; install it with: pip install 'headrace[{form}]'") from error
    raise LakeError(f"unknown format {form!r}; there are {', '.join(FORMATS)}")
