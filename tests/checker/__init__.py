"""A checker in the manner of Jepsen: clients of all four doors keep histories while faults are done to a real broker.

`python -m tests.checker --seconds 300 --seed 7` runs it; `rules` says what must hold of a history, whatever happened.
"""
