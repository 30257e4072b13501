"""What the Spark pipeline does on this machine: freshness, backfill, scan, writer, and what the broker feels of it."""
