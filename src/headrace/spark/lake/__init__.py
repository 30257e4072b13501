"""Tables on disk that a stream writes and any reader of Parquet, Delta or Iceberg reads, each row exactly once.

Knows files and formats; knows nothing of topics, of the broker, or of what the tables are about.
"""
