"""gRPC over HTTP/2, the server's side: frames, the order they come in, calls, and what a peer may cost.

The broker's gRPC door and the feed both stand on it, each on an event loop of its own. Knows nothing of topics, keys
or brokers: who may call is asked of whoever made the server.
"""

from headrace.http2.call import Call, Handler
from headrace.http2.ledger import Ledger
from headrace.http2.limits import Http2Limits
from headrace.http2.server import Admit, GrpcServer, common_name
from headrace.http2.status import GrpcError, Metadata, Status

__all__ = [
    "Admit",
    "Call",
    "GrpcError",
    "GrpcServer",
    "Handler",
    "Http2Limits",
    "Ledger",
    "Metadata",
    "Status",
    "common_name",
]
