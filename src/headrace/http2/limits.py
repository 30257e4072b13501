"""What peers of an HTTP/2 server may cost. Sizes in bytes, times in seconds."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """Bounds on what peers may cost, before and after they are known."""

    message_max: int = 4 * MIB
    """One request message, unpacked."""
    connections_max: int = 10_000
    connections_per_address_max: int = 4096
    auth_timeout_s: float = 10.0
    """A connection on which nobody made himself known for so long is closed."""
    write_timeout_s: float = 60.0
    """Nothing taken for so long by a peer that has something to read, and the call or the connection ends."""
    stall_timeout_s: float = 30.0
    """Half a message, and no byte more for so long: the call ends."""
    idle_ping_s: float = 30.0
    """A peer silent for so long is asked whether it lives, and is gone if it says nothing for as long again."""
    streams_max: int = 1024
    """Calls at a time on one connection."""
    calls_max: int = 4096
    """Calls at a time, all peers together."""
    header_list_max: int = 16_384
    stream_window: int = 256 * 1024
    """What a known peer may send ahead on one call, where there is room for it."""
    connection_buffer_max: int = 16 * MIB
    """What one connection may have under way beyond the first window of each call."""
    buffer_max: int = 128 * MIB
    """The same, all peers together; one of them gets no more than half."""
    write_buffer_max: int = 4 * MIB
    """Unsent answers of one connection, above which `Call.writable` waits."""
    stranger_bytes_max: int = 512 * 1024
    """What one connection may cost before anybody made himself known on it."""
    strangers_bytes_max: int = 48 * MIB
    """The same, all strangers together: beyond it, who has been one for the longest is cut off."""
    stranger_streams_max: int = 64
    stranger_message_max: int = 4096
