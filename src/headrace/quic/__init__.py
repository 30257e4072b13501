"""QUIC as byte streams: datagrams, connections, streams with credit, certificates.

Both ends of a protocol use it. Knows sockets, the event loop and qh3; nothing of protocols and brokers.
"""
