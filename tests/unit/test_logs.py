"""What tasks print: lines with their time, merged, and without what a terminal would obey."""

import re
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdeploy.logs import Line, merged, normal_time

laws = settings(max_examples=200, deadline=None)
times = st.integers(0, 5000).map(lambda n: f"2026-11-18T16:{n // 1000:02}:{n // 100 % 10:02}.{n % 100:09}Z")


def lines(task: str, when: list[str]) -> list[Line]:
    return [Line(task, time, str(number)) for number, time in enumerate(when)]


streams = st.lists(st.lists(times, max_size=12), max_size=5).map(
    lambda all_: [lines(f"worker-{number}", when) for number, when in enumerate(all_)]
)
sane = st.lists(st.lists(times, max_size=12).map(sorted), max_size=5).map(
    lambda all_: [lines(f"worker-{number}", when) for number, when in enumerate(all_)]
)


@laws
@given(streams)
def test_within_a_task_the_order_is_kept_even_where_its_clock_went_back(given_: list[list[Line]]) -> None:
    by_task = defaultdict(list)
    for line in merged(given_):
        by_task[line.task].append(line)
    assert dict(by_task) == {stream[0].task: stream for stream in given_ if stream}


@laws
@given(sane)
def test_where_clocks_are_sane_lines_come_in_the_order_of_time(given_: list[list[Line]]) -> None:
    shown = [line.time for line in merged(given_)]
    assert shown == sorted(shown)


@laws
@given(streams)
def test_no_line_is_lost_or_made_up(given_: list[list[Line]]) -> None:
    assert sorted(map(repr, merged(given_))) == sorted(repr(line) for stream in given_ for line in stream)


def test_a_line_without_a_time_stays_behind_the_one_before_it() -> None:
    first = [Line("a", "2026-01-01T00:00:02.000000000Z", "x"), Line("a", "", "y")]
    second = [Line("b", "2026-01-01T00:00:01.000000000Z", "z"), Line("b", "2026-01-01T00:00:03.000000000Z", "w")]
    assert [line.text for line in merged([first, second])] == ["z", "x", "y", "w"]


# --- one line ---


@pytest.mark.parametrize(
    ("said", "time", "text"),
    [
        ("2026-11-18T16:00:00.123456789Z hello  world ", "2026-11-18T16:00:00.123456789Z", "hello  world "),
        ("2026-11-18T16:00:00.5Z x", "2026-11-18T16:00:00.500000000Z", "x"),
        ("2026-11-18T16:00:00Z", "2026-11-18T16:00:00.000000000Z", ""),
        ("2026-11-18T16:00:00Z  indented", "2026-11-18T16:00:00.000000000Z", " indented"),
        ("Error response from daemon: gone", "", "Error response from daemon: gone"),
        ("", "", ""),
    ],
)
def test_a_line_is_its_time_and_its_text(said: str, time: str, text: str) -> None:
    assert Line.parse("a", said) == Line("a", time, text)


def test_where_streams_are_named_the_name_is_left_out() -> None:
    said = "2026-11-18T16:00:00.123456789Z stderr oh no"
    assert Line.parse("a", said, streams=True).text == "oh no"
    assert Line.parse("a", "2026-11-18T16:00:00.123456789Z stdout ", streams=True).text == ""


def test_times_of_any_length_are_in_the_order_of_their_texts() -> None:
    given_ = ["2026-11-18T16:00:00Z", "2026-11-18T16:00:00.1Z", "2026-11-18T16:00:00.12Z", "2026-11-18T16:00:00.2Z"]
    assert sorted(map(normal_time, reversed(given_))) == [normal_time(text) for text in given_]


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain\ttext", "plain\ttext"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[38;5;196mred\x1b[K", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[Hgone?", "gone?"),
        ("a\x9b31mb", "a31mb"),
        ("a\x07\x08\x00b", "ab"),
        ("\x1b", ""),
        (" 10%\r 50%\r100%", "100%"),
        ("windows\r", "windows"),
        ("10%\r100%\r", "100%"),
        ("grüße 🚀", "grüße 🚀"),
        ("\x1b\x1b[31mx", "x"),
        ("\x1b[\x1b[31m31mx", "[31mx"),
    ],
)
def test_what_a_terminal_would_obey_is_left_out(text: str, safe: str) -> None:
    assert Line("a", "", text).safe == safe


@laws
@given(st.text(st.characters(blacklist_characters="\n")) | st.text("\x1b[]0;m\x07\\ab\x9b\r(P"))
def test_nothing_is_left_that_a_terminal_would_obey(text: str) -> None:
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", Line("a", "", text).safe)
