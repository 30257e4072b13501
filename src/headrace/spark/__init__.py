"""The data pipeline on Spark: topics as tables, and back again by query."""
