"""Makes certificates with any period of validity, for tests of TLS (X.509 as RFC 5280 has it, with RSA keys)."""

from __future__ import annotations

import base64
import datetime as dt
import secrets

from Crypto.Hash import SHA256
from Crypto.PublicKey import RSA
from Crypto.Signature import pkcs1_15

BOOLEAN, INTEGER, BITS, OCTETS, NULL, UTF8, TIME, SEQUENCE, SET = 1, 2, 3, 4, 5, 12, 23, 0x30, 0x31
VERSION, ADDRESS, EXTENSIONS = 0xA0, 0x87, 0xA3
OBJECT_ID = {
    "sha256WithRSAEncryption": bytes.fromhex("06092a864886f70d01010b"),
    "commonName": bytes.fromhex("0603550403"),
    "subjectAltName": bytes.fromhex("0603551d11"),
    "basicConstraints": bytes.fromhex("0603551d13"),
}
DAY = dt.timedelta(days=1)


def encode(tag: int, *parts: bytes) -> bytes:
    """One value in DER."""
    content = b"".join(parts)
    size = len(content).to_bytes(4, "big").lstrip(b"\0") or b"\0"
    length = size if len(content) < 128 else bytes([0x80 | len(size)]) + size
    return bytes([tag]) + length + content


ALGORITHM = encode(SEQUENCE, OBJECT_ID["sha256WithRSAEncryption"], encode(NULL))
TRUE = encode(BOOLEAN, b"\xff")


class Authority:
    """Signs certificates for 127.0.0.1. ``pem`` is its own, for those who trust it."""

    def __init__(self) -> None:
        self._key = RSA.generate(2048)
        is_authority = encode(SEQUENCE, OBJECT_ID["basicConstraints"], TRUE, encode(OCTETS, encode(SEQUENCE, TRUE)))
        now = dt.datetime.now(dt.UTC)
        self.pem = self._sign("authority", self._key, now - DAY, now + DAY, is_authority)

    def issue(self, begins_in: dt.timedelta = -DAY, ends_in: dt.timedelta = DAY) -> str:
        """A private key and its certificate, as PEM. The period is relative to now."""
        key, now = RSA.generate(2048), dt.datetime.now(dt.UTC)
        address = encode(SEQUENCE, encode(ADDRESS, bytes([127, 0, 0, 1])))
        of_this_machine = encode(SEQUENCE, OBJECT_ID["subjectAltName"], encode(OCTETS, address))
        certificate = self._sign("peer", key, now + begins_in, now + ends_in, of_this_machine)
        return f"{key.export_key(pkcs=8).decode()}\n{certificate}"

    def _sign(self, name: str, key: RSA.RsaKey, begins: dt.datetime, ends: dt.datetime, extension: bytes) -> str:
        signed = encode(
            SEQUENCE,
            encode(VERSION, encode(INTEGER, b"\2")),  # 3
            encode(INTEGER, b"\1" + secrets.token_bytes(8)),
            ALGORITHM,
            encode_name("authority"),
            encode(SEQUENCE, encode_time(begins), encode_time(ends)),
            encode_name(name),
            key.public_key().export_key("DER"),
            encode(EXTENSIONS, encode(SEQUENCE, extension)),
        )
        signature = pkcs1_15.new(self._key).sign(SHA256.new(signed))
        text = base64.encodebytes(encode(SEQUENCE, signed, ALGORITHM, encode(BITS, b"\0", signature))).decode()
        return f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n"


def encode_name(name: str) -> bytes:
    attribute = encode(SEQUENCE, OBJECT_ID["commonName"], encode(UTF8, name.encode()))
    return encode(SEQUENCE, encode(SET, attribute))


def encode_time(at: dt.datetime) -> bytes:
    return encode(TIME, f"{at:%y%m%d%H%M%SZ}".encode())
