"""The doors: each protocol is frames (bytes), a session (order) and a client; they speak `model`, never each other."""
