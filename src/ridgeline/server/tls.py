"""HTTPS: the context of the server's certificate and key, which is read again on SIGHUP. TLS 1.2 or later, with OpenSSL's own ciphers."""

import ssl
from pathlib import Path
from typing import NoReturn

from ridgeline.config.file import check_private
from ridgeline.config.groups import ServerConfig
from ridgeline.errors import ConfigError


class Certificate:
    """Certificate and key of the settings, and the context that serves them. `context` is None where the settings have none."""

    def __init__(self, config: ServerConfig) -> None:
        """Raises ConfigError where files are missing, do not belong together, or others can read the key."""
        if config.ssl_keyfile is not None and config.ssl_certfile is None:
            raise ConfigError("--ssl-keyfile has no certificate; add --ssl-certfile FILE", fix={"--ssl-keyfile": None})
        self._config = config
        self.context = None if config.ssl_certfile is None else ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.reload()

    def reload(self) -> None:
        """Reads the files again, for connections from now on. Raises ConfigError, and keeps the old ones, where they are wrong."""
        certificate, key = self._config.ssl_certfile, self._config.ssl_keyfile
        if self.context is None or certificate is None:
            return
        flag = "--ssl-certfile" if key is None else "--ssl-keyfile"
        check_private(key or certificate, flag)
        fix = {"--ssl-certfile": None, "--ssl-keyfile": None}
        paths = [str(Path(each).expanduser()) for each in (certificate, key or certificate)]
        try:
            # A context of its own first: one that has half of a new pair would serve nobody.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(paths[0], paths[1], _no_password)
        except OSError as error:  # SSLError is one
            reason = error.strerror if not isinstance(error, ssl.SSLError) else _reason(error)
            named = f"--ssl-certfile {certificate!r:.200}" + ("" if key is None else f" and --ssl-keyfile {key!r:.200}")
            raise ConfigError(f"{named} cannot be used: {reason}", fix=fix) from None


def _no_password() -> NoReturn:
    """OpenSSL would ask on the terminal, which a service does not have."""
    raise ConfigError("the private key is encrypted; write it without a password, for its owner alone: openssl pkey -in KEY -out PLAIN")


def _reason(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not the certificate's"
    return f"a file is not PEM, or has no certificate or key in it ({error.reason or 'OpenSSL says no more'})"
