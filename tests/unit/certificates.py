"""Certificate authorities for one test, made with the openssl command, and TLS files signed by them."""

import subprocess
from pathlib import Path

from mesh.network.tls import TlsFiles

_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"


class Authority:
    """A CA of its own in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate = folder / "ca.pem"
        openssl(f"req -x509 {_KEY} -subj /CN=authority -keyout {folder}/ca.key -out {self.certificate}")

    def sign(
        self,
        folder: Path,
        *,
        names: str = "IP:127.0.0.1,DNS:localhost",
        key_of: str = _KEY,
        days: int = 2,
        usage: str = "serverAuth,clientAuth",
    ) -> Path:
        """Write certificate.pem, key.pem and ca.pem into the folder; what was there is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        request, signed, key = (folder / name for name in ("request.pem", "new.pem", "key.new"))
        openssl(f"req {key_of} -subj /CN=worker -keyout {key} -out {request}")
        extensions = folder / "extensions"
        extensions.write_text(f"subjectAltName={names}\nextendedKeyUsage={usage}\n")
        signer = f"-CA {self.certificate} -CAkey {self.folder}/ca.key -CAcreateserial"
        openssl(f"x509 -req -in {request} {signer} -days {days} -extfile {extensions} -out {signed}")
        key.replace(folder / "key.pem")
        signed.replace(folder / "certificate.pem")
        (folder / "ca.pem").write_bytes(self.certificate.read_bytes())
        return folder

    def files(self, folder: Path, *, name: str = "", names: str = "IP:127.0.0.1,DNS:localhost") -> TlsFiles:
        return files_in(self.sign(folder, names=names), name=name)


def files_in(folder: Path, *, name: str = "") -> TlsFiles:
    return TlsFiles(folder / "certificate.pem", folder / "key.pem", folder / "ca.pem", name=name)


def openssl(arguments: str) -> None:
    """Run the command `openssl`, which these tests need."""
    subprocess.run(["openssl", *arguments.split()], check=True, capture_output=True)
