"""The ledger: proves that what was published is accounted for, in every subscription and in every table.

`rules` and `offsets` are the arithmetic, pure; the other modules have Spark do it over the log and the lake.
"""
