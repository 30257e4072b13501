"""The tables headrace keeps of its log, one file a table, and what runs them.

Each table is one streaming query with a checkpoint of its own in the lake, so each is exactly once by itself, starts
and fails by itself, and is seen by the broker as a reader of its own name.
"""
