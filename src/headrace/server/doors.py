"""Doors whose protocol asks nobody's name: who may knock there, who is taken for whom, what the sessions are told."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from headrace.auth import ANONYMOUS, Identity, Keyring
from headrace.config import Address, Config, ConfigError
from headrace.protocols.sspq import SspqSession, SspqSettings
from headrace.server.tls import common_name

log = logging.getLogger("headrace.sspq")


def check_callers(
    name: str, address: Address, *, certificates: bool, allow_unauthenticated: bool, section: str = ""
) -> None:
    """Only this machine may come in unnamed, unless somebody said so in `section`, the door's own by default.

    Raises ConfigError.
    """
    if address.is_loopback or certificates or allow_unauthenticated:
        return
    raise ConfigError(
        f"listen.{name}",
        f"{address} can be reached from other machines, and this protocol has no keys: "
        f"set tls.client_ca to ask for client certificates, or {section or name}.allow_unauthenticated = true",
    )


def identify(keyring: Callable[[], Keyring], transport: asyncio.BaseTransport) -> Identity:
    """Who is there by the client certificate the transport has verified; anybody without one."""
    name = common_name(transport.get_extra_info("peercert"))
    return ANONYMOUS if name is None else keyring().certified(name)


def sspq_sessions(config: Config) -> Callable[[], SspqSession]:
    """What makes the sessions of the SSPQ door.

    Raises ConfigError.
    """
    section, broker = config.sspq, config.broker_settings()
    own = broker.topics.get(section.topic)
    policy = own.retry(broker.retry) if own is not None else broker.retry
    try:
        settings = SspqSettings(
            topic=section.topic,
            dead_letter=section.dead_letter,
            force_retries=section.force_retries,
            max_payload=section.max_payload,
            max_attempts=policy.max_attempts,
        )
    except ValueError as error:
        key, _, detail = str(error).partition(": ")
        raise ConfigError(f"sspq.{key}", detail) from None
    return partial(SspqSession, settings, _ignored)


def _ignored(kind: int) -> None:
    log.info("sspq.ignored", extra={"packet": f"{kind:#04x}", "cause": "a packet no client sends"})
