"""Registers the format `headrace` with Spark, which looks for modules named like this one."""

from headrace.spark.source.source import HeadraceSource

DefaultSource = HeadraceSource
