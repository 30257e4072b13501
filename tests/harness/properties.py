"""How often a property is tried: as often as it says in `make test`, a fifth as often in `make check`.

Where every allocation is checked, which takes long, a twentieth has to do.
"""

from hypothesis import HealthCheck, settings

USUAL = 100


def register_profiles() -> None:
    """Make `thorough` the profile in force; `--hypothesis-profile quick`, or `glance`, chooses another one.

    No example has a deadline: a machine that stands still for a moment is not a fault of ours.
    """
    settings.register_profile("thorough", max_examples=USUAL, deadline=None)
    settings.register_profile("quick", max_examples=USUAL // 5, deadline=None)
    settings.register_profile("glance", max_examples=USUAL // 20, deadline=None)
    settings.load_profile("thorough")


def tried(times: int) -> settings:
    """A property that needs so many examples, and is given the profile's share of them."""
    wanted = max(1, times * settings().max_examples // USUAL)
    return settings(max_examples=wanted, suppress_health_check=[HealthCheck.too_slow])
