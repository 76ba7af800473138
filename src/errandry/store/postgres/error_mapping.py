"""Translates the errors of PostgreSQL into the errors of this package, which say what to do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from msgspec import DecodeError
from psycopg import errors

from errandry.errors import StoreCorrupt, StoreFull, StoreRefused, StoreUnavailable

_SERIALIZATION = (errors.DeadlockDetected, errors.SerializationFailure)
CONFLICT = (*_SERIALIZATION, errors.UniqueViolation)
"""Two transactions were in conflict. A retry sees the result of the other one."""

LOCKED = (errors.LockNotAvailable,)
"""Another transaction has held a lock for longer than the lock timeout."""

SESSION_SWITCHED = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)
"""The session changed between two statements: there is a transaction pooler."""

SCHEMA_CHANGED = (errors.FeatureNotSupported,)
"""A column was added to a table after a statement was prepared. A new connection prepares it again."""

STALE_GUESS = (errors.AssertFailure,)
"""A blind insert has guessed wrong."""

NO_PARTITION = (errors.CheckViolation,)
"""There is no partition for a row. With a constraint name, an operator's own constraint has failed."""

_REFUSAL_HINTS: dict[type[psycopg.Error], str] = {
    errors.InvalidPassword: "the password was refused: check user and password in the url",
    errors.InvalidAuthorizationSpecification: "the user was refused: check the url and pg_hba.conf",
    errors.InvalidCatalogName: "there is no such database: create it first (createdb)",
    errors.InsufficientPrivilege: "the user lacks a right: grant it, or use another user",
    errors.UndefinedTable: "its tables do not exist: run `errandry migrate`",
    errors.InvalidSchemaName: "its schema does not exist: run `errandry migrate`",
    errors.UndefinedFunction: "its functions do not exist: run `errandry migrate`",
}
_UNAVAILABLE = (
    *(errors.OperatorIntervention, errors.InsufficientResources, errors.ReadOnlySqlTransaction),
    *(errors.IdleInTransactionSessionTimeout, *_SERIALIZATION, *LOCKED, *SESSION_SWITCHED),
)


@contextmanager
def store_errors(name: str, missing_right: Callable[[str], str | None]) -> Iterator[None]:
    """Turn errors of the server and of libpq into errors of the store `name`.

    `missing_right` gets the message of a refusal and returns which right the user lacks, if it can tell.
    """
    try:
        yield
    except errors.InsufficientPrivilege as error:
        message = _message(error)
        hint = missing_right(message) or _REFUSAL_HINTS[errors.InsufficientPrivilege]
        raise StoreRefused(name, f"{message}: {hint}") from error
    except tuple(_REFUSAL_HINTS) as error:
        raise StoreRefused(name, f"{_message(error)}: {_REFUSAL_HINTS[type(error)]}") from error
    except errors.DiskFull as error:
        raise StoreFull(name, f"the server has no space left ({_message(error)})") from error
    except errors.DataCorrupted as error:
        raise StoreCorrupt(name, f"{_message(error)}: restore a backup") from error
    except (*_UNAVAILABLE, psycopg.InterfaceError) as error:
        raise StoreUnavailable(name, _message(error)) from error
    except DecodeError as error:
        raise StoreCorrupt(name, f"stored data cannot be decoded ({error}): restore a backup") from error
    except psycopg.OperationalError as error:
        raise _connection_error(name, error) from error


def _connection_error(name: str, error: psycopg.OperationalError) -> StoreRefused | StoreUnavailable:
    """The error of a failed connect. libpq gives the cause only as text."""
    message = _message(error)
    for kind, words in _CONNECT_MESSAGES.items():
        if any(word in message for word in words):
            return StoreRefused(name, f"{message}: {_REFUSAL_HINTS[kind]}")
    return StoreUnavailable(name, message)


_CONNECT_MESSAGES = {
    errors.InvalidPassword: ("password authentication failed", "no password supplied"),
    errors.InvalidAuthorizationSpecification: (
        "no pg_hba.conf entry",
        'role "',
        "Peer authentication failed",
    ),
    errors.InvalidCatalogName: ('database "',),
}


def _message(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    return " ".join(text.split())
