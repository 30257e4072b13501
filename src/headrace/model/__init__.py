"""The vocabulary every other package speaks: names, batches, events, requests, errors. Imports nothing of ours."""
