"""Codecs that protect stored payloads and results: `Encrypted` hides them, `Signed` detects changes.

Both bind a text to its job, its task and its field: a text that was moved to another job is refused like a
changed one. Both take several keys, each with an id. New texts use one of them; a stored text names its key.
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
_SALT_BYTES, _NONCE_BYTES = 12, 12
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NEW_KEY_HINT = "errandry.new_key() makes one"


def new_key() -> str:
    """A new random key, as text for an environment variable or a vault."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


class Encrypted:
    """Encrypt with AES-256-GCM. A stored text reveals only its length and the id of its key.

        jobs = Errandry(codec=Encrypted({"2026-11": os.environ["JOBS_KEY"]}))

    `keys` maps ids to keys: 32 bytes, or their base64. `use` is the id of the key for new texts; default: the
    last. `plain_too` also accepts texts that were stored before encryption was introduced.
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
        self._allows_plain = plain_too

    def seal(self, text: str, document: DocumentInfo) -> str:
        """Encrypt under a key derived for this text: one GCM key is safe for a limited number of texts."""
        salt, nonce = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_NONCE_BYTES)
        cipher = self._cipher(self._derive_key(self._keys.use, salt))
        data = cipher.encrypt(nonce, text.encode(), _associated_data(self._keys.use, document))
        return _format_seal("aes-gcm", self._keys.use, base64.b64encode(salt + nonce + data).decode())

    def unseal(self, text: str, document: DocumentInfo) -> str:
        from cryptography.exceptions import InvalidTag

        sealed = _parse_seal("aes-gcm", text)
        if sealed is None:
            return _accept_plain(self._allows_plain, text, document)
        key, data = sealed
        try:
            raw = _decode_base64(data)
            cipher = self._cipher(self._derive_key(self._keys.check_known(key, document), raw[:_SALT_BYTES]))
            nonce, rest = raw[_SALT_BYTES : _SALT_BYTES + _NONCE_BYTES], raw[_SALT_BYTES + _NONCE_BYTES :]
            return cipher.decrypt(nonce, rest, _associated_data(key, document)).decode()
        except (InvalidTag, ValueError) as error:
            raise SealBroken(
                document.job, document.field, "it is not what was encrypted for this job"
            ) from error

    def _derive_key(self, key: str, salt: bytes) -> bytes:
        return hmac.digest(self._keys[key], b"errandry aes-gcm" + salt, "sha256")


def _decode_base64(data: str) -> bytes:
    """Decode canonical base64 only: the decoder ignores trailing bits, so it accepts some changed texts."""
    raw = base64.b64decode(data, validate=True)
    if base64.b64encode(raw).decode() != data:
        raise ValueError("not canonical base64")
    return raw


class Signed:
    """Sign with HMAC-SHA-256. Stored texts stay readable and searchable; changed or moved ones are refused.

    Takes the options of `Encrypted`.
    """

    def __init__(
        self, keys: Mapping[str, bytes | str], use: str | None = None, plain_too: bool = False
    ) -> None:
        self._keys = _KeyRing(keys, use)
        self._allows_plain = plain_too

    def seal(self, text: str, document: DocumentInfo) -> str:
        signature = self._signature(self._keys.use, text, document)
        return f"[{_format_seal('hmac-sha256', self._keys.use, signature)},{text}]"

    def unseal(self, text: str, document: DocumentInfo) -> str:
        head, _, body = text[1:-1].partition(",")
        sealed = _parse_seal("hmac-sha256", head) if (text[:1], text[-1:]) == ("[", "]") else None
        if sealed is None:
            return _accept_plain(self._allows_plain, text, document)
        key, signature = sealed
        expected = self._signature(self._keys.check_known(key, document), body, document)
        if not hmac.compare_digest(expected, signature):
            raise SealBroken(document.job, document.field, "it is not what was signed for this job")
        return body

    def _signature(self, key: str, text: str, document: DocumentInfo) -> str:
        message = _associated_data(key, document) + text.encode()
        return base64.b64encode(hmac.digest(self._keys[key], message, "sha256")).decode()


class _KeyRing:
    """Keys by their ids, and the id of the key for new texts."""

    def __init__(self, keys: Mapping[str, bytes | str], use: str | None) -> None:
        if not keys:
            raise InvalidValue("keys", {}, f"give at least one: {{'2026-11': key}}; {_NEW_KEY_HINT}")
        self._keys = {_check_key_id(key_id): _key_bytes(key_id, key) for key_id, key in keys.items()}
        self.use = next(reversed(self._keys)) if use is None else use
        if self.use not in self._keys:
            raise InvalidValue("use", self.use, f"unknown key; valid keys: {', '.join(self._keys)}")

    def __getitem__(self, key_id: str) -> bytes:
        return self._keys[key_id]

    def check_known(self, key_id: str, document: DocumentInfo) -> str:
        if key_id not in self._keys:
            raise UnknownKey(document.job, document.field, key_id, tuple(self._keys))
        return key_id


def _check_key_id(key_id: Any) -> str:
    if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
        raise InvalidValue("key id", key_id, "must be 1 to 64 letters, digits, dots, dashes or underscores")
    return key_id


def _key_bytes(key_id: str, key: Any) -> bytes:
    """The bytes of a key. Error messages never contain them."""
    name = f"key {key_id}"
    if isinstance(key, str):
        try:
            key = base64.b64decode(key, altchars=b"-_" if {"-", "_"} & set(key) else None, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidValue(name, "…", f"a key given as text is base64: {_NEW_KEY_HINT}") from None
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        size = f"this has {len(key)}" if isinstance(key, bytes) else f"this is a {type(key).__name__}"
        raise InvalidValue(name, "…", f"a key has {KEY_BYTES} bytes, {size}: {_NEW_KEY_HINT}")
    return key


def _associated_data(key: str, document: DocumentInfo) -> bytes:
    """The key id and document a seal is bound to, as JSON, so that different ones give different bytes."""
    return json.dumps([key, document.job, document.task, document.field]).encode() + b"\n"


def _format_seal(kind: str, key: str, data: str) -> str:
    """A JSON string of kind, key id and data, none of which contains characters that JSON escapes."""
    return f'"${kind}${key}${data}"'


def _parse_seal(kind: str, text: str) -> tuple[str, str] | None:
    """The key id and the data of a sealed text; None if it is not a seal of this kind."""
    parts = text.split("$")
    if len(parts) != 4 or parts[:2] != ['"', kind] or not text.endswith('"'):
        return None
    return parts[2], parts[3][:-1]


def _accept_plain(is_allowed: bool, text: str, document: DocumentInfo) -> str:
    if not is_allowed:
        why = "it is not sealed; plain_too=True would accept it"
        raise SealBroken(document.job, document.field, why)
    return text
