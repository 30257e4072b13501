"""The benchmark: one load shape on headrace and on the brokers people would compare it with."""
