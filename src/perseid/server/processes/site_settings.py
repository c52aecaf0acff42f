"""Who this server is, and what follows from that for each of its parts.

A process that answers loads it once, when it starts, and again when it is told to:

    identified = load(directory, config)
    NativeServer(identified.server_settings(), secrets.token_bytes)
    NativeDoor(registry, server, identified.site, settings=identified.door_settings(ports))
    settings_to_json(identified.answering_settings())     # for resolvers, which see no key

The settings of answering as a text, for a process that gets them from another one and reads no files itself.

Resolvers see neither the settings of the installation nor any key: what they need to know of the site fits in one line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perseid.names.handle import CaseRule
from perseid.records.private_keys import PrivateKey
from perseid.records.site import Site, Transport
from perseid.registry.installation.settings import Config
from perseid.registry.installation.site import load_server_identity
from perseid.registry.policy.policy import PROFILES
from perseid.server.native.resolution import ResolutionSettings
from perseid.server.native.server import NativeSettings
from perseid.wire.server import ServerSettings


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server of a site, with its private key. `repr` shows no secret: neither keys nor settings do."""

    site: Site
    position: int
    """Which of the site's servers this is, counted from 0."""
    key: PrivateKey
    config: Config
    site_path: Path
    """The file with the site information that counts."""
    key_path: Path
    remarks: tuple[str, ...] = ()
    """What is no error and yet worth a line in the log."""

    def server_settings(self) -> ServerSettings:
        """For the protocol: the key and the life of challenges and sessions."""
        config = self.config
        return ServerSettings(
            self.key,
            site_serial=self.site.serial,
            is_primary=self.site.is_primary,
            challenge_life=config.sessions_challenge_life,
            session_life=config.sessions_life,
            cipher=config.sessions_cipher,
        )

    def native_settings(self, ports: Mapping[Transport, int]) -> NativeSettings:
        """For the native door, which listens at these ports."""
        return NativeSettings(self.position, self.config.sessions_required, dict(ports))

    def resolution_settings(self) -> ResolutionSettings:
        """For resolvers: what their answers show of the site. No secret is in it."""
        return resolution_settings(self.site, self.position, self.config)


def load_identity(directory: Path, config: Config) -> ServerIdentity:
    """Who the server of an installation is; raises `registry.site_files.SiteProblem`, which says what to do."""
    found = load_server_identity(directory, config)
    return ServerIdentity(found.site, found.position, found.key, config, found.site_path, found.key_path, found.remarks)


def resolution_settings(site: Site, position: int, config: Config) -> ResolutionSettings:
    """What the answers of a server show of its site and of the settings."""
    policy = PROFILES[config.default_profile]
    return ResolutionSettings(
        serial=site.serial,
        is_primary=site.is_primary,
        servers=len(site.servers),
        position=position,
        hash_option=int(site.hash_option),
        default_scheme=policy.scheme,
        default_sensitive=policy.case is CaseRule.SENSITIVE,
        templates=bool(config.templates_delimiter),
    )
