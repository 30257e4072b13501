"""The log as Arrow columns over Flight: for Spark, and for any Arrow client."""
