"""What Spark and the feed say, in the user's words."""

import pytest

from headrace.cli.spark_session import cause, refusal

JOB = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    raise FeedError(code, detail)
headrace.feed.client.FeedError: not allowed to publish to orders

\tat org.apache.spark.api.python.BasePythonRunner
"""


def test_the_last_word_of_python_is_the_cause() -> None:
    assert cause(JOB) == "not allowed to publish to orders"


def test_without_python_it_is_sparks_first_line() -> None:
    assert cause("\n[PATH_NOT_FOUND] Path does not exist.\nmore\n") == "[PATH_NOT_FOUND] Path does not exist."
    assert cause("") == "Spark failed"


@pytest.mark.parametrize(
    ("code", "advice"), [("forbidden", "--key"), ("unauthenticated", "--key"), ("unavailable", "flight listener")]
)
def test_a_refusal_says_what_to_do(code: str, advice: str) -> None:
    failure = refusal(code, "no")
    assert "no" in failure.problem
    assert advice in failure.advice
