"""The shell around the pure core: sockets, the clock, the committer's thread, keys, metrics."""
