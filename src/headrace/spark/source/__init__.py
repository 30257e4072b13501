"""The data source `headrace`: topics of a broker as Spark tables and streams, and rows back into topics.

Everything here runs in Spark's own Python processes, on the driver and on executors, so it knows pyspark, pyarrow, the
feed's client and the standard library, and nothing else of headrace.
"""
