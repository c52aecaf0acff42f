"""Identity of this server, and the settings of each part that follow from it.

A process loads it once at start and again on reload:

    identity = load_identity(directory, config)
    Server(identity.server_settings(), secrets.token_bytes)
    NativeServer(registry, server, identity.site, settings=identity.native_settings(ports))
    PublicResolver(view, identity.resolution_settings(), time)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perseid.records.private_keys import PrivateKey
from perseid.records.site import Site, Transport
from perseid.registry.installation.settings import Config
from perseid.registry.installation.site import load_server_identity
from perseid.server.native.resolution import ResolutionSettings
from perseid.server.native.server import NativeSettings
from perseid.wire.server import ServerSettings
from perseid.wire.sessions import Cipher

_CIPHERS = {"aes": Cipher.AES, "3des": Cipher.TDES, "des": Cipher.DES}


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server of a site, with its private key. `repr` shows no secret."""

    site: Site
    position: int
    """Position among the site's servers, from 0."""
    key: PrivateKey
    config: Config
    site_path: Path
    """The site information file in use."""
    key_path: Path
    remarks: tuple[str, ...] = ()
    """Warnings for the log."""

    def server_settings(self) -> ServerSettings:
        """Return the protocol settings: the key and the lifetimes of challenges and sessions."""
        config = self.config
        return ServerSettings(
            self.key,
            site_serial=self.site.serial,
            is_primary=self.site.is_primary,
            challenge_life=config.sessions.challenge_life,
            session_life=config.sessions.life,
            cipher=_CIPHERS[config.sessions.cipher],
        )

    def native_settings(self, ports: Mapping[Transport, int]) -> NativeSettings:
        """Return the settings of the native interface, which listens at these ports."""
        return NativeSettings(self.position, self.config.sessions.required, dict(ports))

    def resolution_settings(self) -> ResolutionSettings:
        """Return the settings of public resolution, without secrets."""
        return ResolutionSettings.of(self.site, self.position, self.config)


def load_identity(directory: Path, config: Config) -> ServerIdentity:
    """Load the identity of an installation's server; raise `SiteError` with instructions."""
    loaded = load_server_identity(directory, config)
    return ServerIdentity(
        loaded.site, loaded.position, loaded.key, config, loaded.site_path, loaded.key_path, loaded.remarks
    )
