"""`errandry top` on a terminal: content, keys, resizes, and the restored terminal at the end."""

import termios
from collections.abc import Callable

import pytest

from errandry.core.command import Beat
from tests.cli.conftest import Cli, Shop
from tests.cli.shell import Terminal


@pytest.fixture
def busy(shop: Shop) -> Shop:
    """A store with a failed job, many queues and a worker."""
    shop.enqueue(arguments={"to": "unknown"}, id="bad", max_attempts=1)
    shop.work()
    for number in range(40):
        shop.enqueue(queue=f"queue-{number:02}")
    shop.call(shop.jobs.engine.submit, Beat(worker="host-1-aaaa", concurrency=10))
    return shop


def test_the_view_has_every_section(busy: Shop, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("top", "--every", "0.1", columns=90, rows=30)

    frame = screen.wait_for_frame(lambda text: "q quit" in text)
    screen.type("q")

    lines = frame.splitlines()
    assert (len(lines), max(map(len, lines)) <= 90) == (30, True)
    assert "1 worker, 0 running" in lines[0]
    assert "completed 0/s" in lines[1]
    for text in ("Queues (", "Workers", "host-1-aaaa", "Recently failed", "LookupError: no such address"):
        assert text in frame
    assert screen.wait() == 0


def test_the_view_is_updated_and_can_be_paused(busy: Shop, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("top", "--every", "0.1", columns=80, rows=60)
    screen.wait_for_frame(lambda text: "q quit   p pause" in text)

    busy.enqueue(queue="brand-new")
    screen.wait_for_frame(lambda text: "brand-new" in text and "p pause" in text)
    screen.type("p")
    screen.wait_for_frame(lambda text: "VIEW PAUSED" in text and "q quit   p resume" in text)
    busy.enqueue(queue="even-newer")
    screen.type("p")
    screen.wait_for_frame(lambda text: "even-newer" in text and "VIEW PAUSED" not in text)
    screen.type("q")

    assert screen.wait() == 0


def test_the_view_follows_the_size_of_the_terminal(busy: Shop, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("top", "--every", "0.1", columns=100, rows=40)
    screen.wait_for_frame(lambda text: len(text.splitlines()) == 40)

    screen.resize(50, 15)
    frame = screen.wait_for_frame(lambda text: len(text.splitlines()) == 15 and "q quit" in text)
    screen.type("q")

    assert max(map(len, frame.splitlines())) <= 50
    assert screen.wait() == 0


@pytest.mark.parametrize(("keys", "code"), [("q", 0), ("\x03", 130)])
def test_the_terminal_is_restored(
    busy: Shop, terminal: Callable[..., Terminal], keys: str, code: int
) -> None:
    screen = terminal("top", "--every", "0.1")
    before = termios.tcgetattr(screen.master)
    screen.wait_until(lambda text: "q quit" in text)
    assert "\x1b[?1049h" in screen.raw
    screen.type(keys)

    assert screen.wait() == code
    assert "\x1b[?1049l" in screen.raw
    assert "\x1b[?25h" in screen.raw
    assert "Traceback" not in screen.text
    assert termios.tcgetattr(screen.master)[3] == before[3]


def test_top_is_refused_without_a_terminal(cli: Cli, busy: Shop) -> None:
    done = cli("top")

    assert done.code == 2
    assert "top needs a terminal" in done.err
