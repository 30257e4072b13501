"""The broker on a log in memory, checked against a plain model: parts for the simulation and the property tests."""
