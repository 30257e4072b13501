"""headrace: a message broker with four protocols over one durable log."""

__version__ = "0.1.0"
