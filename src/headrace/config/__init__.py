"""Composes the settings of every package once, from a file, the environment and the command line.

Only `cli` and `server/node.py` read the whole; everybody else is handed the section it needs.
"""

from headrace.config.address import Address, parse_address
from headrace.config.errors import ConfigError
from headrace.config.load import DEV_KEY, dev, environment_name, known_keys, load
from headrace.config.sections import (
    AuthSection,
    BrokerSection,
    CertificateEntry,
    Config,
    FlightSection,
    FujinSection,
    GrpcqSection,
    HttpSection,
    KeyEntry,
    LimitsSection,
    ListenSection,
    LogSection,
    RetrySection,
    SspqSection,
    TlsSection,
    TopicSection,
)

__all__ = [
    "DEV_KEY",
    "Address",
    "AuthSection",
    "BrokerSection",
    "CertificateEntry",
    "Config",
    "ConfigError",
    "FlightSection",
    "FujinSection",
    "GrpcqSection",
    "HttpSection",
    "KeyEntry",
    "LimitsSection",
    "ListenSection",
    "LogSection",
    "RetrySection",
    "SspqSection",
    "TlsSection",
    "TopicSection",
    "dev",
    "environment_name",
    "known_keys",
    "load",
    "parse_address",
]
