"""A caller of the HTTP API."""

import httpx

from headrace.testing import KEY


def calling(endpoint: str, key: str = KEY) -> httpx.AsyncClient:
    """Plain HTTP, with a key. The list of trusted authorities stays unread: that takes longer than most tests."""
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=endpoint, headers=headers, verify=False, trust_env=False)
