"""BlipMQ: a binary protocol over TCP with pipelined publishes, polls and acknowledgements."""

from headrace.protocols.blipmq.session import BlipmqSession
from headrace.protocols.spec import ProtocolSpec, Transport

BLIPMQ = ProtocolSpec(name="blipmq", transport=Transport.TCP, new_session=BlipmqSession)
