"""A certificate authority of a test, and what it signs."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


class Authority:
    """Signs; its own certificate is `ca_file`. All files are in `directory`."""

    def __init__(self, directory: Path, common: str = "test authority") -> None:
        self._directory, self._common = directory, common
        self._key = ec.generate_private_key(ec.SECP256R1())
        directory.mkdir(parents=True, exist_ok=True)
        certificate = self._builder(common, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        signed = certificate.sign(self._key, hashes.SHA256())
        self.ca_file = directory / f"{common.replace(' ', '-')}.pem"
        self.ca_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def _builder(self, common: str, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(_name(common))
            .issuer_name(_name(self._common))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )

    def issue(self, common: str, *, names: tuple[str, ...] = (), address: bool = False) -> tuple[Path, Path]:
        """Certificate and key files; valid for DNS `names`, and for 127.0.0.1 if `address`."""
        key = ec.generate_private_key(ec.SECP256R1())
        valid_for: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        if address:
            valid_for.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        builder = self._builder(common, key.public_key())
        if valid_for:
            builder = builder.add_extension(x509.SubjectAlternativeName(valid_for), critical=False)
        certificate, private = self._directory / f"{common}.crt", self._directory / f"{common}.key"
        certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, private


def mosquitto_password(user: str, password: str) -> str:
    """A line of mosquitto's password file."""
    salt, iterations = os.urandom(12), 101
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations)
    return f"{user}:$7${iterations}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n"
