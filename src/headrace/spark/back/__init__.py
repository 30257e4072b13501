"""From tables back into topics: rows chosen by a query, sent in chunks, each once, at a pace.

What is to be sent is written down before the first row goes, so a run that was killed goes on where it stopped, and a
table that changes meanwhile changes nothing.
"""
