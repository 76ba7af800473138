"""What PostgreSQL reports, as errors of ours that say what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from msgspec import DecodeError
from psycopg import errors

from errandry.errors import StoreCorrupt, StoreFull, StoreRefused, StoreUnavailable

_CLASHED = (errors.DeadlockDetected, errors.SerializationFailure)
CONFLICT = (*_CLASHED, errors.UniqueViolation)
"""Two transactions were in each other's way: the same again succeeds, seeing what the other has made."""

LOCKED = (errors.LockNotAvailable,)
"""Another transaction has kept a lock for longer than we wait."""

SESSION_SWITCHED = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)
"""Between two statements we were given another session: there is a transaction pooler."""

SCHEMA_CHANGED = (errors.FeatureNotSupported,)
"""A table has got another column since a statement was prepared: on a new connection it is prepared anew."""

STALE_GUESS = (errors.AssertFailure,)
"""Something is not as a pass thought that was sent without having looked."""

NO_PARTITION = (errors.CheckViolation,)
"""There is no partition for a row; with the name of a constraint, it is one that somebody has added."""

_REFUSED: dict[type[psycopg.Error], str] = {
    errors.InvalidPassword: "the password was refused: check user and password in the url",
    errors.InvalidAuthorizationSpecification: "the user was refused: check the url and pg_hba.conf",
    errors.InvalidCatalogName: "there is no such database: create it first (createdb)",
    errors.InsufficientPrivilege: "the user lacks a right: grant it, or use another user",
    errors.UndefinedTable: "its tables are gone, or were never made: run `errandry migrate`",
    errors.InvalidSchemaName: "its schema is gone: run `errandry migrate`",
    errors.UndefinedFunction: "its functions are gone: run `errandry migrate`",
}
_AWAY = (
    *(errors.OperatorIntervention, errors.InsufficientResources, errors.ReadOnlySqlTransaction),
    *(errors.IdleInTransactionSessionTimeout, *_CLASHED, *LOCKED, *SESSION_SWITCHED),
)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn what the server and libpq report about themselves into errors of the store `name`."""
    try:
        yield
    except tuple(_REFUSED) as error:
        raise StoreRefused(name, f"{_said(error)}: {_REFUSED[type(error)]}") from error
    except errors.DiskFull as error:
        raise StoreFull(name, f"the server has no space left ({_said(error)})") from error
    except errors.DataCorrupted as error:
        raise StoreCorrupt(name, f"{_said(error)}: restore a backup") from error
    except (*_AWAY, psycopg.InterfaceError) as error:
        raise StoreUnavailable(name, _said(error)) from error
    except DecodeError as error:
        raise StoreCorrupt(name, f"what is stored cannot be read ({error}): restore a backup") from error
    except psycopg.OperationalError as error:
        raise _connecting(name, error) from error


def _connecting(name: str, error: psycopg.OperationalError) -> StoreRefused | StoreUnavailable:
    """libpq says only in words why it could not connect."""
    said = _said(error)
    for kind, words in _WORDS.items():
        if any(one in said for one in words):
            return StoreRefused(name, f"{said}: {_REFUSED[kind]}")
    return StoreUnavailable(name, said)


_WORDS = {
    errors.InvalidPassword: ("password authentication failed", "no password supplied"),
    errors.InvalidAuthorizationSpecification: (
        "no pg_hba.conf entry",
        'role "',
        "Peer authentication failed",
    ),
    errors.InvalidCatalogName: ('database "',),
}


def _said(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    return " ".join(text.split())
