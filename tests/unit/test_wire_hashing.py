"""SDS message ids bind sender, Lamport timestamp and content, each to its own field."""

import hashlib

from Crypto.Hash import keccak
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.wire.hashing import IdScheme, compute_joined_id, keccak256, sds_message_id

lamports = st.integers(0, 2**63 - 1)


@given(st.binary(max_size=500), st.sampled_from((bytes, bytearray, memoryview)))
def test_keccak_is_that_of_another_library(data: bytes, kind: type[bytes | bytearray | memoryview]) -> None:
    assert keccak256(kind(data)) == keccak.new(digest_bits=256, data=data).digest()


def test_an_id_is_keccak_of_its_separated_fields() -> None:
    digest = keccak.new(digest_bits=256, data=b"\xffalice\xff1700000000123000000\xffhello")
    assert sds_message_id("alice", 1_700_000_000_123, b"hello") == digest.hexdigest()


def test_a_sender_whose_name_ends_in_digits_does_not_meet_the_id_of_another() -> None:
    first, second = ("alice", 1_700_000_000_123), ("alice1", 700_000_000_123)
    assert compute_joined_id(*first, b"x") == compute_joined_id(*second, b"x")
    assert sds_message_id(*first, b"x") != sds_message_id(*second, b"x")


@given(st.text(max_size=12), lamports, st.binary(max_size=40), st.integers(0, 40))
def test_no_other_split_of_the_same_bytes_has_the_same_id(name: str, lamport: int, content: bytes, cut: int) -> None:
    """Characters that move between two neighbouring fields give another id."""
    digits = str(lamport * 1_000_000)
    for other_name, other_digits, other_content in (
        (name + digits[:cut], digits[cut:], content),
        (name, digits[:cut], digits[cut:].encode() + content),
    ):
        if (other_name, other_digits, other_content) == (name, digits, content):
            continue
        try:
            whole, rest = divmod(int(other_digits), 1_000_000)
        except ValueError:
            continue
        if rest or str(int(other_digits)) != other_digits:
            continue
        assert sds_message_id(other_name, whole, other_content) != sds_message_id(name, lamport, content)


@given(st.text(max_size=8), lamports, st.binary(max_size=40))
def test_each_scheme_makes_its_own_id(name: str, lamport: int, content: bytes) -> None:
    ids = {scheme.message_id(name, lamport, content) for scheme in IdScheme}
    assert len(ids) == len(IdScheme)
    assert hashlib.sha256(content).hexdigest() in ids
    assert IdScheme.KECCAK.message_id(name, None, content) is None
