"""The rules find what they are for: a history that holds is altered in every way a broker could go wrong."""

import random
from collections.abc import Callable
from copy import deepcopy

import pytest

from tests.checker.history import Fault, Final, History, Kind, Op, Outcome, value_in
from tests.checker.rules import ATTEMPTS_MAX, violations

Run = tuple[History, Final]


def op(kind: Kind, values: list[str], at: float, **more: object) -> Op:
    told = {"lane": "gp", "topic": "a", "subscription": "", "outcome": Outcome.OK} | more
    return Op(kind=kind, values=tuple(values), asked=at, ended=at + 0.5, **told)  # type: ignore[arg-type]


def sound(seed: int) -> Run:
    """A run in which all went well: published one by one, delivered in order, some twice, acked or dead in the end."""
    chance = random.Random(seed)
    history, final = History(), Final(followed={"grpcq-a": "a"})
    stored = final.stored["a"] = [f"gp.a.{number};" for number in range(20)]
    clock = 0.0
    for at in range(0, 20, 2):
        history.ops.append(op(Kind.TRANSACT, stored[at : at + 2], clock))
        clock += 1
    history.ops.append(op(Kind.TRANSACT, ["gp.a.20;", "gp.a.21;"], clock, outcome=Outcome.REFUSED))
    about = {"lane": "grpcq0", "subscription": "grpcq-a"}
    for value in stored:
        last = chance.choice((1, 1, 2, ATTEMPTS_MAX))
        for attempt in range(1, last + 1):
            clock += 1
            history.ops.append(op(Kind.TAKE, [value], clock, attempts=(attempt,), **about))
        clock += 1
        if last < ATTEMPTS_MAX:
            history.ops.append(op(Kind.ACK, [value], clock, **about))
        else:
            final.dead.setdefault("grpcq-a", []).append(value)
    return history, final


def acked(history: History) -> Op:
    return next(each for each in history.ops if each.kind is Kind.ACK)


def lose(history: History, final: Final) -> None:
    final.stored["a"].remove("gp.a.7;")


def half_a_transaction(history: History, final: Final) -> None:
    first = next(each for each in history.ops if each.kind is Kind.TRANSACT)
    first.outcome = Outcome.UNKNOWN
    final.stored["a"].remove(first.values[1])


def store_what_was_refused(history: History, final: Final) -> None:
    final.stored["a"] += ["gp.a.20;", "gp.a.21;"]


def store_twice(history: History, final: Final) -> None:
    final.stored["a"].append("gp.a.3;")


def swap_two(history: History, final: Final) -> None:
    stored = final.stored["a"]
    stored[4], stored[9] = stored[9], stored[4]


def forget_a_delivery(history: History, final: Final) -> None:
    value = acked(history).values[0]
    history.ops = [each for each in history.ops if each.kind is not Kind.TAKE or value not in each.values]


def deliver_what_nobody_sent(history: History, final: Final) -> None:
    history.ops.append(op(Kind.TAKE, ["xx.a.1;"], 900.0, lane="grpcq0", subscription="grpcq-a", attempts=(1,)))


def deliver_after_the_ack(history: History, final: Final) -> None:
    done = acked(history)
    history.ops.append(op(Kind.TAKE, [done.values[0]], done.ended + 1, subscription="grpcq-a", attempts=(4,)))


def bury_what_was_acked(history: History, final: Final) -> None:
    final.dead.setdefault("grpcq-a", []).append(acked(history).values[0])


def bury_twice(history: History, final: Final) -> None:
    final.dead["grpcq-a"] = final.dead["grpcq-a"][:1] * 2


def deliver_too_often(history: History, final: Final) -> None:
    value = final.dead["grpcq-a"][0]
    history.ops.append(op(Kind.TAKE, [value], 900.0, subscription="grpcq-a", attempts=(ATTEMPTS_MAX + 1,)))


def forget_to_count(history: History, final: Final) -> None:
    again = next(each for each in history.ops if each.kind is Kind.TAKE and each.attempts == (2,))
    again.attempts = (1,)


def deliver_out_of_order(history: History, final: Final) -> None:
    takes = [each for each in history.ops if each.kind is Kind.TAKE and each.attempts == (1,)]
    takes[2].asked, takes[2].ended = takes[-1].ended + 1, takes[-1].ended + 2


WRONGS: tuple[tuple[Callable[[History, Final], None], str], ...] = (
    (lose, "nothing_acknowledged_is_lost"),
    (half_a_transaction, "transactions_are_whole"),
    (store_what_was_refused, "transactions_are_whole"),
    (store_twice, "nothing_is_doubled"),
    (swap_two, "what_a_publisher_sent_in_order_is_stored_in_order"),
    (forget_a_delivery, "everything_stored_reaches_every_subscription"),
    (deliver_what_nobody_sent, "nothing_is_invented"),
    (deliver_after_the_ack, "what_is_settled_stays_settled"),
    (bury_what_was_acked, "what_is_settled_stays_settled"),
    (bury_twice, "dead_letters_are_unique"),
    (deliver_too_often, "attempts_are_counted_and_bounded"),
    (forget_to_count, "attempts_are_counted_and_bounded"),
    (deliver_out_of_order, "first_deliveries_come_in_the_order_stored"),
)


@pytest.mark.parametrize("seed", range(5))
def test_a_sound_history_breaks_no_rule(seed: int) -> None:
    assert violations(*sound(seed)) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("go_wrong", "rule"), WRONGS, ids=lambda each: getattr(each, "__name__", ""))
def test_each_wrong_is_found_by_its_rule(go_wrong: Callable[[History, Final], None], rule: str, seed: int) -> None:
    history, final = deepcopy(sound(seed))
    go_wrong(history, final)
    assert any(found.startswith(f"{rule}:") for found in violations(history, final))


def test_what_a_death_may_forget_is_no_violation() -> None:
    history, final = sound(0)
    again = next(each for each in history.ops if each.kind is Kind.TAKE and each.attempts == (2,))
    again.attempts = (1,)
    history.faults.append(Fault("kill", again.asked - 0.4, again.asked - 0.3))
    assert violations(history, final) == []


def test_a_value_is_found_bare_and_in_an_envelope() -> None:
    assert value_in(b"gp.a.12;") == value_in(b"\x12\x05check\x22\x08gp.a.12;\x2a\x01x") == "gp.a.12;"
