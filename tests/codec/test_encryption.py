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
ABOUT = DocumentInfo("job-1", "send", "payload")
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
def test_what_was_sealed_comes_back_unchanged(codec: Codec, text: str) -> None:
    sealed = codec.seal(text, ABOUT)
    json.loads(sealed)
    assert codec.unseal(sealed, ABOUT) == text


def test_what_is_encrypted_tells_nothing_and_never_looks_the_same() -> None:
    codec = CODECS[0]
    one, other = codec.seal('{"card":"4000-0002"}', ABOUT), codec.seal('{"card":"4000-0002"}', ABOUT)
    assert one != other
    assert "4000" not in one
    assert b"4000" not in b64decode(one.split("$")[-1][:-1])


def test_what_is_signed_can_still_be_searched() -> None:
    assert '{"card":"4000-0002"}' in CODECS[1].seal('{"card":"4000-0002"}', ABOUT)


@each_codec
@pytest.mark.parametrize(
    "about",
    [replace(ABOUT, job="job-2"), replace(ABOUT, task="pay"), replace(ABOUT, field="result")],
    ids=["job", "task", "field"],
)
def test_what_was_sealed_for_something_else_is_refused(codec: Codec, about: DocumentInfo) -> None:
    sealed = codec.seal('{"to":"ada"}', ABOUT)
    with pytest.raises(SealBroken, match=f"the {about.field} of job {about.job} cannot be trusted"):
        codec.unseal(sealed, about)


@each_codec
@given(where=st.integers(min_value=0), to=st.characters(codec="ascii"))
def test_no_character_can_be_changed_unnoticed(codec: Codec, where: int, to: str) -> None:
    sealed = codec.seal('{"to":"ada","n":12}', ABOUT)
    where %= len(sealed)
    changed = sealed[:where] + to + sealed[where + 1 :]
    if changed == sealed:
        return
    with pytest.raises((SealBroken, UnknownKey)):
        codec.unseal(changed, ABOUT)


def test_there_is_one_way_to_write_what_is_sealed() -> None:
    """The last character before the padding of base64 has bits that are not part of what it says."""
    codec = Encrypted({"a": OLD})
    sealed = next(one for n in range(3) if "=" in (one := codec.seal(f'"{"x" * n}"', ABOUT)))
    where = sealed.index("=") - 1
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    twin = letters[letters.index(sealed[where]) ^ 1]
    with pytest.raises(SealBroken):
        codec.unseal(sealed[:where] + twin + sealed[where + 1 :], ABOUT)


@each_codec
@given(text=documents)
def test_what_was_never_sealed_is_refused_or_taken_if_so_told(codec: Encrypted | Signed, text: str) -> None:
    with pytest.raises(SealBroken, match="it is not sealed"):
        codec.unseal(text, ABOUT)
    assert type(codec)({"a": OLD}, plain_too=True).unseal(text, ABOUT) == text


@each_kind
def test_keys_can_be_changed_while_jobs_are_stored(kind: type[Encrypted] | type[Signed]) -> None:
    before = kind({"a": OLD})
    both = kind({"a": OLD, "b": NEW})
    after = kind({"b": NEW})
    old, new = before.seal("1", ABOUT), both.seal("2", ABOUT)

    assert (both.unseal(old, ABOUT), both.unseal(new, ABOUT), after.unseal(new, ABOUT)) == ("1", "2", "2")
    with pytest.raises(UnknownKey, match="sealed under key a: known here are b"):
        after.unseal(old, ABOUT)
    assert kind({"a": OLD, "b": NEW}, use="a").seal("1", ABOUT).count("$a$") == 1


@each_kind
def test_a_text_cannot_be_moved_to_another_keys_name(kind: type[Encrypted] | type[Signed]) -> None:
    codec = kind({"a": OLD, "b": OLD})
    with pytest.raises(SealBroken):
        codec.unseal(codec.seal("1", ABOUT).replace("$b$", "$a$"), ABOUT)


@each_kind
@pytest.mark.parametrize(
    ("keys", "use", "why"),
    [
        ({}, None, "give at least one"),
        ({"a": "short"}, None, r"key a='…': as text, a key is base64"),
        ({"a": b"short"}, None, r"key a='…': a key has 32 bytes, this has 5"),
        ({"a": b64encode(b"short").decode()}, None, "a key has 32 bytes, this has 5"),
        ({"a": 7}, None, "this is a int"),
        ({"a$b": OLD}, None, r"key id='a\$b': must be 1 to 64 letters"),
        ({"": OLD}, None, "must be 1 to 64 letters"),
        ({"a": OLD}, "b", "use='b': there is no such key: there are a"),
    ],
)
def test_senseless_keys_are_refused_and_never_shown(
    kind: type[Encrypted] | type[Signed], keys: dict[str, str | bytes], use: str | None, why: str
) -> None:
    with pytest.raises(InvalidValue, match=why) as refused:
        kind(keys, use)
    assert OLD not in str(refused.value)


def test_bytes_and_both_kinds_of_base64_are_the_same_key() -> None:
    raw = b64decode(OLD)
    url = OLD.replace("+", "-").replace("/", "_")
    sealed = Encrypted({"a": raw}).seal("1", ABOUT)
    assert Encrypted({"a": url}).unseal(sealed, ABOUT) == Encrypted({"a": OLD}).unseal(sealed, ABOUT) == "1"


@each_codec
async def test_jobs_run_and_results_come_back(codec: Codec, jobs: Errandry) -> None:
    jobs.codec = codec

    @jobs.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    job = await greet.enqueue("ada")
    await drain(jobs, strict=True)

    assert await job.result(30) == "hello ada"
    record = await jobs.record(job.id)
    assert "$a$" in record.payload
    assert "$a$" in (record.result or "")


@each_codec
async def test_a_job_with_anothers_payload_fails_and_its_handler_is_not_called(
    codec: Codec, jobs: Errandry
) -> None:
    jobs.codec = codec
    called: list[str] = []

    @jobs.task
    async def greet(name: str) -> None:
        called.append(name)

    one, other = await greet.enqueue("ada"), await greet.enqueue("grace")
    stolen = (await jobs.record(one.id)).payload
    await jobs.engine.submit(EditJobs(ids=(other.id,), payload=stolen))
    await drain(jobs)
    record = await jobs.record(other.id)

    assert called == ["ada"]
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.INVALID_PAYLOAD, 1)
    assert "cannot be trusted" in record.errors[0].message


async def test_a_worker_without_the_key_leaves_the_job_to_another_try(jobs: Errandry) -> None:
    @jobs.task(backoff="1h")
    async def greet(name: str) -> None: ...

    jobs.codec = Encrypted({"b": NEW})
    job = await greet.enqueue("ada")
    jobs.codec = Encrypted({"a": OLD})
    await drain(jobs)
    record = await jobs.record(job.id)

    assert (record.state, record.errors[0].type) == (State.SCHEDULED, "UnknownKey")


def test_without_the_package_it_is_said_what_to_install() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from errandry.codec.encryption import Encrypted, Signed, new_key\n"
        "Signed({'a': new_key()})\n"
        "try: Encrypted({'a': new_key()})\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'errandry[crypto]'" in done.stdout
