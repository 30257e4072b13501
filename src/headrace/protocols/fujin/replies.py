"""What one session has to say: replies in the order of their commands, each as soon as what it promises holds.

A tag names a command to the server: a serial number, the code of its reply and its correlation id.
"""

from headrace.model.errors import BrokerError
from headrace.model.requests import Fence, Leave, Refuse
from headrace.protocols.fujin.errors import text_of
from headrace.protocols.fujin.frames import DISCONNECT, Response, encode_connected, encode_reply

_CODE_AT = 32
_SERIAL_AT = 40
_ID_MASK = (1 << _CODE_AT) - 1


class Replies:
    """Bytes on their way out. Behind the farewell only replies that were due before it are made."""

    def __init__(self) -> None:
        self._out: list[bytes] = []
        self._prepared: dict[int, bytes] = {}
        self._serial = 0
        self._parted = False

    def say(self, data: bytes) -> None:
        """Send now."""
        self._out.append(data)

    def mention(self, data: bytes) -> None:
        """Send now what answers no command, unless the farewell is said."""
        if not self._parted:
            self._out.append(data)

    def take(self) -> bytes:
        """What to send now; each byte is given out once."""
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    def tag(self, response: Response, correlation_id: int = 0) -> int:
        """A new tag for the command that is answered like this."""
        self._serial += 1
        return self._serial << _SERIAL_AT | response << _CODE_AT | correlation_id

    def in_turn(self, response: Response, correlation_id: int, data: bytes) -> Fence:
        """Send once every earlier command is answered."""
        tag = self.tag(response, correlation_id)
        self._prepared[tag] = data
        return Fence(tag)

    def farewell(self) -> Leave:
        """Say goodbye once every earlier command is answered."""
        tag = self.tag(Response.DISCONNECT)
        self._prepared[tag] = DISCONNECT
        return Leave(tag)

    def passed(self, tag: int) -> None:
        """The turn has come."""
        self.say(self._prepared.pop(tag))
        self._parted |= _response(tag) is Response.DISCONNECT

    def refusal(self, response: Response, correlation_id: int, error: BrokerError) -> Refuse:
        """Answer with an error once every earlier command is answered."""
        return Refuse(self.tag(response, correlation_id), error)

    def refused(self, tag: int, error: BrokerError) -> None:
        """Answer the command with this tag with an error, now."""
        response = _response(tag)
        if response is Response.CONNECT_READER:
            self.say(encode_connected(text_of(error)))
        else:
            self.say(encode_reply(response, correlation_id(tag), text_of(error)))


def _response(tag: int) -> Response:
    return Response(tag >> _CODE_AT & 0xFF)


def correlation_id(tag: int) -> int:
    """The correlation id in a tag."""
    return tag & _ID_MASK
