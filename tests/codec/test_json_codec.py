"""Values as JSON text."""

import pickle

import pytest

from errandry.codec.json_codec import to_json
from errandry.errors import InvalidValue


def test_a_value_that_cannot_be_written_is_named_by_its_type() -> None:
    with pytest.raises(InvalidValue) as refusal:
        to_json("result", object())

    assert str(refusal.value).startswith("result=an object of type object: cannot be written as JSON: ")
    assert refusal.value.value == "object"
    assert str(pickle.loads(pickle.dumps(refusal.value))) == str(refusal.value)
