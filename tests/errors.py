"""Errors that must come."""

from collections.abc import Callable
from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)


def raised(kind: type[Error], function: Callable[..., object], *arguments: object, **named: object) -> Error:
    """Call a function that must fail with an error of this kind, and return the error."""
    try:
        result = function(*arguments, **named)
    except kind as error:
        return error
    code = getattr(function, "__code__", None)
    told = f"what line {code.co_firstlineno} of {code.co_filename} calls" if code else repr(function)
    raise AssertionError(f"no {kind.__name__} from {told}, but {result!r}")


def assert_says(error: BaseException | str, *said: str) -> None:
    """Check that an error says all this."""
    for text in said:
        assert text in str(error), f"the error does not say {text!r}: {error}"


def assert_starts(error: BaseException | str, start: str) -> None:
    """Check that an error starts so."""
    assert str(error).startswith(start), f"the error does not start with {start!r}: {error}"
