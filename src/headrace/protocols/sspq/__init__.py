"""SSPQ: one queue over TCP; a message is sent and forgotten, received one at a time, confirmed or tried again."""

from headrace.protocols.sspq.session import SspqSession, SspqSettings

__all__ = ["SspqSession", "SspqSettings"]
