"""`errandry top` on a terminal: what is seen, keys, resizes, and a terminal left as it was."""

import termios
from collections.abc import Callable

import pytest

from errandry.core.command import Beat
from tests.cli.conftest import Cli, Place
from tests.cli.shell import Terminal


@pytest.fixture
def busy(place: Place) -> Place:
    """A store with something of everything in it."""
    place.enqueue(arguments={"to": "nobody"}, id="bad", max_attempts=1)
    place.work()
    for number in range(40):
        place.enqueue(queue=f"queue-{number:02}")
    place.ask(place.jobs.engine.submit, Beat(worker="host-1-aaaa", concurrency=10))
    return place


def test_everything_is_in_the_picture(busy: Place, terminal: Callable[..., Terminal]) -> None:
    seen = terminal("top", "--every", "0.1", columns=90, rows=30)

    picture = seen.frame(lambda text: "q quit" in text)
    seen.type("q")

    lines = picture.splitlines()
    assert (len(lines), max(map(len, lines)) <= 90) == (30, True)
    assert "1 worker, 0 running" in lines[0]
    assert "completed 0/s" in lines[1]
    for text in ("Queues (", "Workers", "host-1-aaaa", "Failed lately", "LookupError: no such address"):
        assert text in picture
    assert seen.over() == 0


def test_it_shows_what_happens_and_can_be_held(busy: Place, terminal: Callable[..., Terminal]) -> None:
    seen = terminal("top", "--every", "0.1", columns=80, rows=60)
    seen.frame(lambda text: "q quit   p hold" in text)

    busy.enqueue(queue="brand-new")
    seen.frame(lambda text: "brand-new" in text and "p hold" in text)
    seen.type("p")
    seen.frame(lambda text: "HELD" in text and "q quit   p go on" in text)
    busy.enqueue(queue="even-newer")
    seen.type("p")
    seen.frame(lambda text: "even-newer" in text and "HELD" not in text)
    seen.type("q")

    assert seen.over() == 0


def test_it_follows_the_size_of_the_terminal(busy: Place, terminal: Callable[..., Terminal]) -> None:
    seen = terminal("top", "--every", "0.1", columns=100, rows=40)
    seen.frame(lambda text: len(text.splitlines()) == 40)

    seen.resize(50, 15)
    picture = seen.frame(lambda text: len(text.splitlines()) == 15 and "q quit" in text)
    seen.type("q")

    assert max(map(len, picture.splitlines())) <= 50
    assert seen.over() == 0


@pytest.mark.parametrize(("keys", "code"), [("q", 0), ("\x03", 130)])
def test_the_terminal_is_left_as_it_was(
    busy: Place, terminal: Callable[..., Terminal], keys: str, code: int
) -> None:
    seen = terminal("top", "--every", "0.1")
    before = termios.tcgetattr(seen.master)
    seen.until(lambda text: "q quit" in text)
    assert "\x1b[?1049h" in seen.raw
    seen.type(keys)

    assert seen.over() == code
    assert "\x1b[?1049l" in seen.raw
    assert "\x1b[?25h" in seen.raw
    assert "Traceback" not in seen.text
    assert termios.tcgetattr(seen.master)[3] == before[3]


def test_without_a_terminal_it_says_so(cli: Cli, busy: Place) -> None:
    done = cli("top")

    assert done.code == 2
    assert "top needs a terminal" in done.err
