"""Unit tests of the broker core."""
