"""License files: signing, verification, and rejection of everything else; issuers' keys."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from support.licenses import ISSUER, KEYS, make_license, signed
from taco_license.document.keys import (
    key_id,
    project_keys,
    read_private_key,
    read_public_keys,
    write_key_pair,
)
from taco_license.document.license_file import MAX_BYTES, Gpu, License, sign, verify
from taco_license.document.view import render_view
from taco_license.errors import LicenseError

NAMES = st.text(
    st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1, max_size=20
)


def signed_payload(payload: bytes) -> bytes:
    """Any payload with a valid signature."""
    return b"taco-license/1 %s %s\n%s" % (
        key_id(ISSUER.public_key()).encode(),
        ISSUER.sign(payload).hex().encode(),
        payload,
    )


def payload_with(**changes: Any) -> bytes:
    content = json.loads(signed(make_license(1)).split(b"\n", 1)[1])
    return json.dumps(content | changes).encode()


@given(customer=NAMES, app_id=NAMES, brand=NAMES, limit=st.integers(0, 2**63 - 1))
def test_a_signed_license_verifies_and_renders(
    customer: str, app_id: str, brand: str, limit: int
) -> None:
    issued = replace(
        make_license(),
        customer=customer,
        app_id=app_id,
        access_limit=limit,
        gpus=(Gpu("1", brand),),
    )
    assert verify(signed(issued), KEYS) == issued
    shown = yaml.safe_load(render_view(issued))
    assert (shown["customer"], shown["appid"], shown["accesslimit"]) == (customer, app_id, limit)
    assert [(gpu["uuid"], gpu["brand"]) for gpu in shown["gpuinfos"]] == [("1", brand)]


def test_the_view_reads_as_in_the_documents_of_taco() -> None:
    license_ = License(
        serial=7,
        app_id="1234",
        customer="leolingli",
        access_limit=0,
        issued_time="2024-09-06T10:43:54.427014401+08:00",
        expired_time="2025-09-06T10:43:54.427014401+08:00",
        gpus=(
            Gpu("GPU-4c34f7a2-cd33-469b-019f-9af0bb76a073", "Tesla T4"),
            Gpu("1234", "Fake Brand"),
        ),
    )
    assert render_view(verify(signed(license_), KEYS)) == (
        'appid: "1234"\n'
        "customer: leolingli\n"
        "accesslimit: 0\n"
        "gpuinfos:\n"
        "- uuid: GPU-4c34f7a2-cd33-469b-019f-9af0bb76a073\n"
        "  brand: Tesla T4\n"
        "  issuedtime: 2024-09-06T10:43:54.427014401+08:00\n"
        "  expiredtime: 2025-09-06T10:43:54.427014401+08:00\n"
        '- uuid: "1234"\n'
        "  brand: Fake Brand\n"
        "  issuedtime: 2024-09-06T10:43:54.427014401+08:00\n"
        "  expiredtime: 2025-09-06T10:43:54.427014401+08:00\n"
    )


def test_every_flipped_bit_is_rejected() -> None:
    data = signed(make_license(2))
    assert verify(data, KEYS)
    for index in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[index] ^= 1 << bit
            with pytest.raises(LicenseError):
                verify(bytes(changed), KEYS)


def test_missing_or_added_bytes_are_rejected() -> None:
    data = signed(make_license(1))
    for changed in (
        *(data[:end] for end in range(len(data))),
        data + b"\n",
        data + data,
        b" " + data,
    ):
        with pytest.raises(LicenseError):
            verify(changed, KEYS)


def test_an_untrusted_issuer_is_rejected_even_under_a_trusted_id() -> None:
    other = Ed25519PrivateKey.generate()
    data = sign(make_license(), other)
    with pytest.raises(LicenseError, match="not trusted here"):
        verify(data, KEYS)
    trusted, own = (key_id(key.public_key()).encode() for key in (ISSUER, other))
    with pytest.raises(LicenseError, match="was changed"):
        verify(data.replace(own, trusted), KEYS)
    with pytest.raises(LicenseError, match="not trusted here"):
        verify(data, project_keys())


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (payload_with(serial=0), "serial must be"),
        (payload_with(serial=True), "serial must be"),
        (payload_with(serial=1.0), "serial must be"),
        (payload_with(accesslimit=-1), "accesslimit must be"),
        (payload_with(accesslimit=2**63), "accesslimit must be"),
        (payload_with(accesslimit=float("nan")), "must not contain NaN"),
        (payload_with(customer=""), "customer must be"),
        (payload_with(customer="a\nb"), "customer must be"),
        (payload_with(customer="a" * 257), "customer must be"),
        (payload_with(appid=1234), "appid must be"),
        (payload_with(expiredtime="2026-01-01"), "expiredtime must be a time"),
        (payload_with(expiredtime="2027-01-01T00:00:00"), "expiredtime must be a time"),
        (payload_with(expiredtime="2027-02-30T00:00:00Z"), "expiredtime must be a time"),
        (payload_with(expiredtime="2026-01-01T08:00:00+08:00"), "later than issuedtime"),
        (payload_with(gpuinfos=[]), "at least one"),
        (payload_with(gpuinfos={}), "must be a list"),
        (payload_with(gpuinfos=["GPU-1"]), "exactly these fields: uuid, brand"),
        (payload_with(gpuinfos=[{"uuid": "a", "brand": "b"}] * 2), "contains the GPU a twice"),
        (payload_with(more=1), "exactly these fields"),
        (b'{"serial":1,"serial":2}', "the same key twice"),
        (payload_with() + b"{}", "not one JSON object"),
        (b"[]", "exactly these fields"),
        (b"[" * 100_000, "not one JSON object"),
        (b"\xff", "not UTF-8"),
        (b"", "not one JSON object"),
    ],
)  # fmt: skip
def test_an_invalid_signed_payload_is_rejected(payload: bytes, message: str) -> None:
    with pytest.raises(LicenseError, match=message):
        verify(signed_payload(payload), KEYS)


def test_sign_rejects_what_servers_reject() -> None:
    with pytest.raises(LicenseError, match="twice"):
        signed(replace(make_license(), gpus=(Gpu("a", "b"), Gpu("a", "c"))))
    gpus = tuple(Gpu(f"{index:0256}", "b" * 256) for index in range(8000))
    with pytest.raises(LicenseError, match=f"at most {MAX_BYTES} are allowed"):
        signed(replace(make_license(), gpus=gpus))
    with pytest.raises(LicenseError, match=f"at most {MAX_BYTES} are allowed"):
        verify(bytes(MAX_BYTES + 1), KEYS)


def test_key_pairs_are_written_and_read(tmp_path: Path) -> None:
    private, public = tmp_path / "issuer.key", tmp_path / "issuer.pub"
    name = write_key_pair(private, public)
    assert private.stat().st_mode & 0o777 == 0o600
    assert verify(sign(make_license(), read_private_key(private)), read_public_keys([public]))
    assert list(read_public_keys([public])) == [name]


def test_an_existing_key_is_never_overwritten(tmp_path: Path) -> None:
    paths = tmp_path / "issuer.key", tmp_path / "issuer.pub"
    write_key_pair(*paths)
    before = [path.read_bytes() for path in paths]
    with pytest.raises(LicenseError, match="already exists"):
        write_key_pair(*paths)
    with pytest.raises(LicenseError, match="already exists"):
        write_key_pair(paths[0], tmp_path / "another.pub")
    assert [path.read_bytes() for path in paths] == before


def test_files_without_a_key_are_rejected(tmp_path: Path) -> None:
    private, public = tmp_path / "issuer.key", tmp_path / "issuer.pub"
    write_key_pair(private, public)
    with pytest.raises(LicenseError, match="no Ed25519 private key"):
        read_private_key(public)
    with pytest.raises(LicenseError, match="no Ed25519 public key"):
        read_public_keys([private])
    with pytest.raises(LicenseError, match="No such file"):
        read_private_key(tmp_path / "absent")


def test_there_are_two_issuers_of_the_project() -> None:
    assert len(project_keys()) == 2
