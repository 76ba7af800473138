"""Codecs that protect what is stored: `Encrypted` hides it, `Signed` leaves it readable and shows changes.

Both bind a text to its job, its task and its field: one that was moved to another job is refused like one
that was changed. Both have several keys, each with an id: new texts use one of them, old texts name theirs.
"""

import base64
import binascii
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from errandry.codec.json_codec import DocumentInfo
from errandry.errors import InvalidValue, SealBroken, UnknownKey

KEY_BYTES = 32
_SALT, _NONCE = 12, 12
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def new_key() -> str:
    """A key nobody has had before, as text for an environment variable or a vault."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


class Encrypted:
    """AES-256-GCM. What is stored tells nobody anything but its length and the id of its key.

    `keys` maps ids to keys, 32 bytes or their base64; `use` is the id of the one that seals, the last if not
    given. `plain_too` also takes what was stored before anything was encrypted.
    """

    def __init__(
        self, keys: Mapping[str, bytes | str], use: str | None = None, plain_too: bool = False
    ) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            why = "needs the package cryptography: pip install 'errandry[crypto]'"
            raise InvalidValue("codec", "Encrypted", why) from error
        self._cipher = AESGCM
        self._keys = _KeyRing(keys, use)
        self._plain_too = plain_too

    def seal(self, text: str, about: DocumentInfo) -> str:
        """Under a key of its own, derived from ours: with one key for all, GCM is safe for so many only."""
        salt, nonce = secrets.token_bytes(_SALT), secrets.token_bytes(_NONCE)
        cipher = self._cipher(self._derived(self._keys.use, salt))
        data = cipher.encrypt(nonce, text.encode(), _bound(self._keys.use, about))
        return _written("aes-gcm", self._keys.use, base64.b64encode(salt + nonce + data).decode())

    def unseal(self, text: str, about: DocumentInfo) -> str:
        from cryptography.exceptions import InvalidTag

        sealed = _read("aes-gcm", text)
        if sealed is None:
            return _plain(self._plain_too, text, about)
        key, data = sealed
        try:
            raw = _decoded(data)
            cipher = self._cipher(self._derived(self._keys.known(key, about), raw[:_SALT]))
            nonce, rest = raw[_SALT : _SALT + _NONCE], raw[_SALT + _NONCE :]
            return cipher.decrypt(nonce, rest, _bound(key, about)).decode()
        except (InvalidTag, ValueError) as error:
            raise SealBroken(about.job, about.field, "it is not what was encrypted for this job") from error

    def _derived(self, key: str, salt: bytes) -> bytes:
        return hmac.digest(self._keys[key], b"errandry aes-gcm" + salt, "sha256")


def _decoded(data: str) -> bytes:
    """Base64 as it is written: bits after its end that nobody looks at would be a second way to write it."""
    raw = base64.b64decode(data, validate=True)
    if base64.b64encode(raw).decode() != data:
        raise ValueError("another way to write the same")
    return raw


class Signed:
    """HMAC-SHA-256. What is stored can be read and searched by anyone, but not changed or moved unnoticed.

    Options as for `Encrypted`.
    """

    def __init__(
        self, keys: Mapping[str, bytes | str], use: str | None = None, plain_too: bool = False
    ) -> None:
        self._keys = _KeyRing(keys, use)
        self._plain_too = plain_too

    def seal(self, text: str, about: DocumentInfo) -> str:
        mark = _written("hmac-sha256", self._keys.use, self._mark(self._keys.use, text, about))
        return f"[{mark},{text}]"

    def unseal(self, text: str, about: DocumentInfo) -> str:
        head, _, body = text[1:-1].partition(",")
        sealed = _read("hmac-sha256", head) if (text[:1], text[-1:]) == ("[", "]") else None
        if sealed is None:
            return _plain(self._plain_too, text, about)
        key, mark = sealed
        if not hmac.compare_digest(self._mark(self._keys.known(key, about), body, about), mark):
            raise SealBroken(about.job, about.field, "it is not what was signed for this job")
        return body

    def _mark(self, key: str, text: str, about: DocumentInfo) -> str:
        whole = _bound(key, about) + text.encode()
        return base64.b64encode(hmac.digest(self._keys[key], whole, "sha256")).decode()


class _KeyRing:
    """Keys by their ids, and the id of the one in use."""

    def __init__(self, keys: Mapping[str, bytes | str], use: str | None) -> None:
        if not keys:
            raise InvalidValue("keys", {}, "give at least one: {'2026-11': key}; seal.new_key() makes one")
        self._keys = {_named(key_id): _key(key_id, key) for key_id, key in keys.items()}
        self.use = next(reversed(self._keys)) if use is None else use
        if self.use not in self._keys:
            raise InvalidValue("use", self.use, f"there is no such key: there are {', '.join(self._keys)}")

    def __getitem__(self, key_id: str) -> bytes:
        return self._keys[key_id]

    def known(self, key_id: str, about: DocumentInfo) -> str:
        if key_id not in self._keys:
            raise UnknownKey(about.job, about.field, key_id, tuple(self._keys))
        return key_id


def _named(key_id: Any) -> str:
    if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
        raise InvalidValue("key id", key_id, "must be 1 to 64 letters, digits, dots, dashes or underscores")
    return key_id


def _key(key_id: str, key: Any) -> bytes:
    """The bytes of a key. A message never shows them."""
    name = f"key {key_id}"
    if isinstance(key, str):
        try:
            key = base64.b64decode(key, altchars=b"-_" if {"-", "_"} & set(key) else None, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidValue(name, "…", "as text, a key is base64: seal.new_key() makes one") from None
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        size = f"this has {len(key)}" if isinstance(key, bytes) else f"this is a {type(key).__name__}"
        raise InvalidValue(name, "…", f"a key has {KEY_BYTES} bytes, {size}: seal.new_key() makes one")
    return key


def _bound(key: str, about: DocumentInfo) -> bytes:
    """What a seal covers beside the text; as JSON, so that no two of them look alike."""
    return json.dumps([key, about.job, about.task, about.field]).encode() + b"\n"


def _written(kind: str, key: str, data: str) -> str:
    """As JSON text: none of its parts has anything that JSON would escape."""
    return f'"${kind}${key}${data}"'


def _read(kind: str, text: str) -> tuple[str, str] | None:
    """The id of the key and the data; None if it was not sealed in this way."""
    parts = text.split("$")
    if len(parts) != 4 or parts[:2] != ['"', kind] or not text.endswith('"'):
        return None
    return parts[2], parts[3][:-1]


def _plain(is_taken: bool, text: str, about: DocumentInfo) -> str:
    if not is_taken:
        why = "it is not sealed; plain_too=True would take it"
        raise SealBroken(about.job, about.field, why)
    return text
