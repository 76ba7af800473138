"""Sealed payloads and results: only what was sealed for a job, its task and its field is ever used."""

import json
import subprocess
import sys
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from errandry import Errandry
from errandry.codec.encryption import Encrypted, Signed, new_key
from errandry.codec.json_codec import Codec, DocumentInfo
from errandry.core.command import EditJobs
from errandry.core.state import Reason, State
from errandry.errors import InvalidValue, SealBroken, UnknownKey
from errandry.testing import drain

OLD, NEW = new_key(), new_key()
DOCUMENT = DocumentInfo("job-1", "send", "payload")
CODECS: list[Encrypted | Signed] = [Encrypted({"a": OLD}), Signed({"a": OLD})]
KINDS = [Encrypted, Signed]

each_codec = pytest.mark.parametrize("codec", CODECS, ids=["encrypted", "signed"])
each_kind = pytest.mark.parametrize("kind", KINDS, ids=["encrypted", "signed"])
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
).map(json.dumps)


@each_codec
@given(text=documents)
def test_unseal_returns_the_sealed_text(codec: Codec, text: str) -> None:
    sealed = codec.seal(text, DOCUMENT)
    json.loads(sealed)
    assert codec.unseal(sealed, DOCUMENT) == text


def test_encrypted_texts_reveal_nothing_and_differ_each_time() -> None:
    codec = CODECS[0]
    first, second = codec.seal('{"card":"4000-0002"}', DOCUMENT), codec.seal('{"card":"4000-0002"}', DOCUMENT)
    assert first != second
    assert "4000" not in first
    assert b"4000" not in b64decode(first.split("$")[-1][:-1])


def test_signed_texts_can_be_searched() -> None:
    assert '{"card":"4000-0002"}' in CODECS[1].seal('{"card":"4000-0002"}', DOCUMENT)


@each_codec
@pytest.mark.parametrize(
    "document",
    [replace(DOCUMENT, job="job-2"), replace(DOCUMENT, task="pay"), replace(DOCUMENT, field="result")],
    ids=["job", "task", "field"],
)
def test_a_text_sealed_for_another_document_is_refused(codec: Codec, document: DocumentInfo) -> None:
    sealed = codec.seal('{"to":"ada"}', DOCUMENT)
    with pytest.raises(SealBroken, match=f"the {document.field} of job {document.job} cannot be trusted"):
        codec.unseal(sealed, document)


@each_codec
@given(where=st.integers(min_value=0), to=st.characters(codec="ascii"))
def test_every_changed_character_is_detected(codec: Codec, where: int, to: str) -> None:
    sealed = codec.seal('{"to":"ada","n":12}', DOCUMENT)
    where %= len(sealed)
    changed = sealed[:where] + to + sealed[where + 1 :]
    if changed == sealed:
        return
    with pytest.raises((SealBroken, UnknownKey)):
        codec.unseal(changed, DOCUMENT)


def test_noncanonical_base64_is_refused() -> None:
    """The last base64 character before the padding has bits that decoders ignore."""
    codec = Encrypted({"a": OLD})
    sealed = next(text for n in range(3) if "=" in (text := codec.seal(f'"{"x" * n}"', DOCUMENT)))
    where = sealed.index("=") - 1
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    twin = letters[letters.index(sealed[where]) ^ 1]
    with pytest.raises(SealBroken):
        codec.unseal(sealed[:where] + twin + sealed[where + 1 :], DOCUMENT)


@each_codec
@given(text=documents)
def test_plain_texts_are_refused_unless_allowed(codec: Encrypted | Signed, text: str) -> None:
    with pytest.raises(SealBroken, match="it is not sealed"):
        codec.unseal(text, DOCUMENT)
    assert type(codec)({"a": OLD}, plain_too=True).unseal(text, DOCUMENT) == text


@each_kind
def test_keys_can_be_rotated_while_jobs_are_stored(kind: type[Encrypted] | type[Signed]) -> None:
    before = kind({"a": OLD})
    both = kind({"a": OLD, "b": NEW})
    after = kind({"b": NEW})
    old, new = before.seal("1", DOCUMENT), both.seal("2", DOCUMENT)

    assert (both.unseal(old, DOCUMENT), both.unseal(new, DOCUMENT), after.unseal(new, DOCUMENT)) == (
        "1",
        "2",
        "2",
    )
    with pytest.raises(UnknownKey, match="sealed under key a: this program has the keys b"):
        after.unseal(old, DOCUMENT)
    assert kind({"a": OLD, "b": NEW}, use="a").seal("1", DOCUMENT).count("$a$") == 1


@each_kind
def test_the_key_id_of_a_text_cannot_be_changed(kind: type[Encrypted] | type[Signed]) -> None:
    codec = kind({"a": OLD, "b": OLD})
    with pytest.raises(SealBroken):
        codec.unseal(codec.seal("1", DOCUMENT).replace("$b$", "$a$"), DOCUMENT)


@each_kind
@pytest.mark.parametrize(
    ("keys", "use", "why"),
    [
        ({}, None, "give at least one"),
        ({"a": "short"}, None, r"key a='…': a key given as text is base64"),
        ({"a": b"short"}, None, r"key a='…': a key has 32 bytes, this has 5"),
        ({"a": b64encode(b"short").decode()}, None, "a key has 32 bytes, this has 5"),
        ({"a": 7}, None, "this is a int"),
        ({"a$b": OLD}, None, r"key id='a\$b': must be 1 to 64 letters"),
        ({"": OLD}, None, "must be 1 to 64 letters"),
        ({"a": OLD}, "b", "use='b': unknown key; valid keys: a"),
    ],
)
def test_wrong_keys_are_refused_and_never_shown(
    kind: type[Encrypted] | type[Signed], keys: dict[str, str | bytes], use: str | None, why: str
) -> None:
    with pytest.raises(InvalidValue, match=why) as refused:
        kind(keys, use)
    assert OLD not in str(refused.value)


def test_bytes_and_both_kinds_of_base64_are_the_same_key() -> None:
    raw = b64decode(OLD)
    url = OLD.replace("+", "-").replace("/", "_")
    sealed = Encrypted({"a": raw}).seal("1", DOCUMENT)
    assert (
        Encrypted({"a": url}).unseal(sealed, DOCUMENT)
        == Encrypted({"a": OLD}).unseal(sealed, DOCUMENT)
        == "1"
    )


@each_codec
async def test_jobs_run_with_sealed_payloads_and_results(codec: Codec, jobs: Errandry) -> None:
    jobs.client.codec = codec

    @jobs.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    job = await greet.enqueue("ada")
    await drain(jobs, strict=True)

    assert await job.result(30) == "hello ada"
    record = await jobs.client.record(job.id)
    assert "$a$" in record.payload
    assert "$a$" in (record.result or "")


@each_codec
async def test_a_job_with_the_payload_of_another_fails_before_its_handler(
    codec: Codec, jobs: Errandry
) -> None:
    jobs.client.codec = codec
    called: list[str] = []

    @jobs.task
    async def greet(name: str) -> None:
        called.append(name)

    first, second = await greet.enqueue("ada"), await greet.enqueue("grace")
    stolen = (await jobs.client.record(first.id)).payload
    await jobs.engine.submit(EditJobs(ids=(second.id,), payload=stolen))
    await drain(jobs)
    record = await jobs.client.record(second.id)

    assert called == ["ada"]
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.INVALID_PAYLOAD, 1)
    assert "cannot be trusted" in record.errors[0].message


async def test_a_worker_without_the_key_retries_the_job(jobs: Errandry) -> None:
    @jobs.task(backoff="1h")
    async def greet(name: str) -> None: ...

    jobs.client.codec = Encrypted({"b": NEW})
    job = await greet.enqueue("ada")
    jobs.client.codec = Encrypted({"a": OLD})
    await drain(jobs)
    record = await jobs.client.record(job.id)

    assert (record.state, record.errors[0].type) == (State.SCHEDULED, "UnknownKey")


def test_without_the_package_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from errandry.codec.encryption import Encrypted, Signed, new_key\n"
        "Signed({'a': new_key()})\n"
        "try: Encrypted({'a': new_key()})\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'errandry[crypto]'" in done.stdout
