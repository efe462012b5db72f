"""Ctrl-C during training: never lost, wherever it comes, and never told as an error."""

import signal

import pytest

from latentia.learning.interrupts import remembered


class Dying:
    """Ctrl-C is pressed while it goes: Python cannot raise there, prints a traceback and forgets."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


class Broken:
    def __del__(self) -> None:
        raise OSError("another error of a finaliser")


@pytest.fixture(autouse=True)
def default_handler():
    """Whoever starts the tests in the background may have switched the signal off."""
    outer = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, outer)


@pytest.mark.filterwarnings("error")
def test_ctrl_c_in_a_finaliser_is_remembered_and_not_printed(monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    with remembered() as pressed:
        thing = Dying()
        assert not pressed()
        del thing
        assert pressed()
        broken = Broken()
        del broken
    assert [each.exc_type for each in told] == [OSError]
    told[:] = []
    thing = Dying()
    del thing  # outside of a run everything is as before
    assert [each.exc_type for each in told] == [KeyboardInterrupt]


def test_ctrl_c_elsewhere_is_raised_at_once():
    with pytest.raises(KeyboardInterrupt), remembered():
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the signal raises")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
