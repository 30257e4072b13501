"""Fujin: a byte protocol with confirmed writes, transactions, push and pull readers; a QUIC stream for each of them."""

from headrace.protocols.fujin.session import FujinSession
from headrace.protocols.fujin.settings import Dialect, FujinSettings, WriteHeaders
from headrace.protocols.spec import ProtocolSpec, Transport

FUJIN = ProtocolSpec(name="fujin", transport=Transport.QUIC, new_session=FujinSession)

__all__ = ["FUJIN", "Dialect", "FujinSession", "FujinSettings", "WriteHeaders"]
