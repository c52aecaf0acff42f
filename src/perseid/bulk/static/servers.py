"""Configuration of nginx and Apache for a static site.

Both look up the decoded path of a request in a map, which gives the id of the record, and then the id in the maps of
redirects and tombstones. Ids are hexadecimal, so that no part of a request becomes a file name or configuration.

nginx reads a map as quoted tokens: a backslash and a quote are escaped, and a dollar sign, which would start a
variable, is a variable itself (`$perseid_dollar`). It compares keys without regard to ASCII case, as handles are
compared; case-sensitive handles that differ in case alone are regular expressions. Its tokens have at most 4,096 bytes.

Apache reads a map as words. Keys are percent-encoded as its `int:escape` does, in lowercase; exact ones are in a map of
their own. It reads at most 1,024 bytes of a line, and the rest as another line: a long name could become an entry for
another one. So what is longer is in no map.
"""

import re
from pathlib import Path
from typing import IO, Final

from perseid.names.handle import fold

GONE: Final = 410

REDIRECTS: Final = (301, 302, 303, 307, 308)
"""Statuses of redirects."""

MAX_TOKEN: Final = 4_000
"""Bytes of a token of nginx, which has a buffer of 4,096 for it."""

MAX_LINE: Final = 1_000
"""Bytes of a line of Apache's maps, which has a buffer of 1,024 for it."""

MIN_BUCKET: Final = 1_024
"""Bytes of a bucket of nginx's map: enough for a dozen usual handles, so that no bucket is too small."""

_DOLLAR: Final = "${perseid_dollar}"
_ELEMENT_SIZE: Final = 64  # bytes of an element of nginx's map besides its key, and some more
_LOCATION: Final = re.compile("[\x21-\x7e]+")
_PLAIN_PATH: Final = re.compile(r"[\w /.,:=@+~-]+")
_APACHE_SAFE: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789$-_.+!*'(),:@&=/~")
_PATTERN_SAFE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_/,:=@~")
_DOT_SEGMENT: Final = re.compile(r"(?:^|/)\.\.?(?:/|$)")


def is_usable(directory: Path) -> bool:
    """Whether configuration files can name a directory: some characters have a meaning there that nothing escapes."""
    return _PLAIN_PATH.fullmatch(str(directory)) is not None


def fits(location: str) -> bool:
    """Whether a redirect can be in a map of nginx: one word of ASCII that is not too long."""
    return _LOCATION.fullmatch(location) is not None and _is_token(quote_nginx(location))


def quote_nginx(text: str, *, is_value: bool = True) -> str:
    """Quote a token for nginx; in a value, dollar signs are escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped.replace("$", _DOLLAR) if is_value else escaped}"'


def _is_token(quoted: str) -> bool:
    return len(quoted.encode()) <= MAX_TOKEN


def escape_apache(text: str) -> str:
    """Percent-encode a path as `int:escape` of Apache does."""
    return "".join([chr(byte) if byte in _APACHE_SAFE else f"%{byte:02x}" for byte in text.encode()])


def percent_encode(text: str) -> str:
    """Percent-encode a path as browsers do, for handles that only the raw target of a request preserves."""
    return "".join([chr(byte) if byte in _APACHE_SAFE else f"%{byte:02X}" for byte in text.encode()])


class Maps:
    """The maps of a site, written line by line."""

    def __init__(self, folder: Path, target: Path) -> None:
        self._folder, self.target = folder, target
        self._files: dict[str, IO[bytes]] = {}
        self._count = 0
        self._longest = 0
        self._exact: dict[str, list[tuple[str, str]]] = {}  # case-sensitive paths and their ids, by folded path
        self.unmapped: list[str] = []
        """Names that are too long for a map of one of the servers; complete after `finish`."""
        for name in ("nginx/names.map", "nginx/raw.map", "nginx/gone.map", "apache/names.map", "apache/exact.map"):
            self._open(name)
        self._open("apache/gone.map")
        for status in REDIRECTS:
            self._open(f"nginx/{status}.map")
            self._open(f"apache/{status}.map")

    def add_name(self, name: str, id_: str, *, exact: bool) -> None:
        """Add a name under which a record resolves. Names with a zero byte are unreachable over HTTP servers."""
        path = f"/{name}"
        if "\0" in name:
            self.unmapped.append(name)
            return
        is_mapped = self._add_to_apache(path, id_, exact)
        if _DOT_SEGMENT.search(path):
            is_mapped &= self._add_raw(path, id_, exact)
        elif exact:
            self._exact.setdefault(fold(path), []).append((path, id_))
        else:
            is_mapped &= self._put_key("names", quote_nginx(path, is_value=False), id_)
        if not is_mapped:
            self.unmapped.append(name)

    def _add_raw(self, path: str, id_: str, exact: bool) -> bool:
        """Add a path with dot segments, which nginx resolves in `$uri`, so that only the raw target tells."""
        keys = [start + percent_encode(path) for start in ("/api/handles", "")]
        quoted = [_quote_pattern(key) if exact else quote_nginx(key, is_value=False) for key in keys]
        return all(self._put_key("raw", key, id_) for key in quoted)

    def _put_key(self, name: str, key: str, id_: str) -> bool:
        """Put a key into a map of nginx; return whether it fits."""
        if not _is_token(key):
            return False
        self._count += 1
        self._longest = max(self._longest, len(key.encode()))
        self._put(f"nginx/{name}.map", f"{key} {id_};")
        return True

    def _add_to_apache(self, path: str, id_: str, exact: bool) -> bool:
        key = escape_apache(path)
        keys = {key, key.replace("%3b", ";")}  # which of both depends on the version of Apache
        for each in sorted(keys):
            if not self._put_line("exact" if exact else "names", each if exact else each.lower(), id_):
                return False
        return True

    def _put_line(self, name: str, key: str, value: str) -> bool:
        """Put a line into a map of Apache; return whether it fits."""
        is_short = len(key) + len(value) + 2 <= MAX_LINE
        if is_short:
            self._put(f"apache/{name}.map", f"{key} {value}")
        return is_short

    def add_redirect(self, id_: str, status: int, location: str) -> bool:
        """Add the redirect of a record, which `fits`; return whether it fits into a map of Apache, too."""
        self._put(f"nginx/{status}.map", f"{id_} {quote_nginx(location)};")
        return self._put_line(str(status), id_, location)

    def add_gone(self, id_: str) -> None:
        """Add a tombstone."""
        self._put("nginx/gone.map", f"{id_} 1;")
        self._put("apache/gone.map", f"{id_} 1")

    def finish(self) -> list[str]:
        """Write the configuration; return the names of all files."""
        for group in self._exact.values():
            for path, id_ in group:
                key = _quote_pattern(path) if len(group) > 1 else quote_nginx(path, is_value=False)
                if not self._put_key("names", key, id_):
                    self.unmapped.append(path.removeprefix("/"))
        for file in self._files.values():
            file.close()
        bucket = max(MIN_BUCKET, -(-(self._longest + _ELEMENT_SIZE) // 64) * 64)
        texts = {
            "nginx.conf": _NGINX.format(
                directory=self.target,
                size=max(2_048, 2 * self._count),
                bucket=bucket,
                redirect_maps="".join([_NGINX_MAP.format(status=s, directory=self.target) for s in REDIRECTS]),
                redirects="".join([f"        if ($perseid_{s}) {{ return {s} $perseid_{s}; }}\n" for s in REDIRECTS]),
            ),
            "apache.conf": _APACHE.replace("REDIRECT_MAPS", "".join([_APACHE_MAP.format(status=s) for s in REDIRECTS]))
            .replace("REDIRECTS", "".join([_APACHE_REDIRECT.format(status=s) for s in REDIRECTS]))
            .replace("DIRECTORY", str(self.target)),
        }
        for name, text in texts.items():
            (self._folder / name).write_bytes(text.encode())
        return [*texts, *self._files]

    def _open(self, name: str) -> None:
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        self._files[name] = path.open("xb")

    def _put(self, name: str, line: str) -> None:
        self._files[name].write(f"{line}\n".encode())


def _quote_pattern(path: str) -> str:
    """A case-sensitive key of nginx that matches exactly one path."""
    pattern = "".join([char if char in _PATTERN_SAFE else _escape_pattern(char) for char in path])
    return quote_nginx(f"~^{pattern}$", is_value=False)


def _escape_pattern(char: str) -> str:
    return "".join([f"\\x{byte:02x}" for byte in char.encode()])


_NGINX_MAP: Final = """\
map "$perseid_api$perseid_id" $perseid_{status} {{ default ""; include "{directory}/nginx/{status}.map"; }}
"""

_NGINX: Final = """\
# Include this file in the block http of nginx.conf. Change `listen` and `server_name`, and the paths if you move it.
map_hash_max_size {size};
map_hash_bucket_size {bucket};

geo $perseid_dollar {{ default "$"; }}
map $request_uri $perseid_raw {{ default ""; include "{directory}/nginx/raw.map"; }}
map $request_uri $perseid_api {{ default ""; "~^/api/handles/" "1"; }}
map $uri $perseid_path {{ default $uri; "~^(?s)/(?:api/handles|hdl)(?<perseid_rest>/.*)$" $perseid_rest; }}
map $perseid_path $perseid_named {{ default ""; "/" "index"; include "{directory}/nginx/names.map"; }}
map $perseid_raw $perseid_id {{ default $perseid_raw; "" $perseid_named; }}
map $perseid_api $perseid_form {{ default "html"; "1" "json"; }}
map "$perseid_api$perseid_id" $perseid_gone {{ default ""; include "{directory}/nginx/gone.map"; }}
{redirect_maps}
server {{
    listen 80;
    server_name _;
    merge_slashes off;
    absolute_redirect off;
    charset utf-8;
    error_page 404 /.perseid/records/not-found.$perseid_form;
    error_page 410 /.perseid/records/$perseid_id.html;
    add_header X-Content-Type-Options nosniff always;

    location / {{
{redirects}        if ($perseid_gone) {{ return 410; }}
        rewrite ^ /.perseid/records/$perseid_id.$perseid_form last;
    }}
    location ^~ /.perseid/records/ {{
        internal;
        types {{ text/html html; application/json json; }}
        alias "{directory}/records/";
    }}
    location ^~ /.perseid/proofs/ {{
        types {{ application/json json; }}
        alias "{directory}/proofs/";
    }}
    location ^~ /.perseid/ledger/ {{
        types {{ text/plain txt; application/json json; }}
        alias "{directory}/ledger/";
    }}
}}
"""

_APACHE_MAP: Final = """\
RewriteMap perseid_{status} "txt:DIRECTORY/apache/{status}.map"
"""

# Since version 2.4.60, Apache refuses a question mark that is not literally in the rule. It removes one `&` or an
# empty query from the end, so such a target gets another `&`.
_APACHE_REDIRECT: Final = """\
RewriteCond ${{perseid_{status}:%{{ENV:perseid_id}}}} ^([^?]+)[?](|.*&)$
RewriteRule ^ %1?%2& [R={status},NE,QSD,END]
RewriteCond ${{perseid_{status}:%{{ENV:perseid_id}}}} ^([^?]+)[?](.+)$
RewriteRule ^ %1?%2 [R={status},NE,QSD,END]
RewriteCond ${{perseid_{status}:%{{ENV:perseid_id}}}} ^(.+)$
RewriteRule ^ %1 [R={status},NE,QSD,END]
"""

_APACHE: Final = """\
# Include this file in a virtual host of Apache 2.4 with mod_rewrite. Change the paths if you move the folder.
AllowEncodedSlashes On
MergeSlashes Off
Header always set X-Content-Type-Options nosniff
ErrorDocument 404 /.perseid/records/not-found.html
ErrorDocument 410 /.perseid/records/gone.html
Alias "/.perseid/" "DIRECTORY/"
<Directory "DIRECTORY">
    Require all granted
    AddDefaultCharset utf-8
    AddType application/json .json
</Directory>

RewriteEngine On
RewriteMap perseid_escape int:escape
RewriteMap perseid_lower int:tolower
RewriteMap perseid_names "txt:DIRECTORY/apache/names.map"
RewriteMap perseid_exact "txt:DIRECTORY/apache/exact.map"
RewriteMap perseid_gone "txt:DIRECTORY/apache/gone.map"
REDIRECT_MAPS
RewriteRule ^/\\.perseid/ - [END]
RewriteRule (?s)^(?:/api/handles|/hdl)?(/.*)$ - [E=perseid_key:${perseid_escape:$1}]
RewriteRule ^/api/handles/ - [E=perseid_api:1]
RewriteCond ${perseid_exact:%{ENV:perseid_key}} ^(.+)$
RewriteRule ^ - [E=perseid_id:%1]
RewriteCond %{ENV:perseid_id} ^$
RewriteCond ${perseid_names:${perseid_lower:%{ENV:perseid_key}}} ^(.+)$
RewriteRule ^ - [E=perseid_id:%1]
RewriteCond %{ENV:perseid_id} ^$
RewriteRule ^/$ /.perseid/records/index.html [END,PT]
RewriteCond %{ENV:perseid_id} ^$
RewriteRule ^ - [R=404,END]
RewriteCond %{ENV:perseid_api} ^1$
RewriteRule ^ /.perseid/records/%{ENV:perseid_id}.json [END,PT]
REDIRECTSRewriteCond ${perseid_gone:%{ENV:perseid_id}} ^(.+)$
RewriteRule ^ - [R=410,END]
RewriteRule ^ /.perseid/records/%{ENV:perseid_id}.html [END,PT]
"""


def render_readme(count: int, origin: str, as_of: int, maps: Maps) -> str:
    """Render the README of a site."""
    return _README.format(count=count, origin=origin, as_of=as_of, directory=maps.target)


_README: Final = """\
# {count:,} identifiers as plain files

These are the public records of the ledger `{origin}`, as of its entry {as_of}. Any web server can keep them resolving;
Perseid is not needed. Nothing private is in this folder.

## Serve it

- nginx: include `nginx.conf` in the block `http` of your configuration, and set `listen` and `server_name` in it.
- Apache 2.4: include `apache.conf` in a virtual host; it needs mod_rewrite and mod_headers.

Both files name this folder as `{directory}`. If you move it, replace that path in them.

An identifier resolves at `/IDENTIFIER` and `/hdl/IDENTIFIER`; `/api/handles/IDENTIFIER` has its record in JSON. A
resource that is gone has status 410. Identifiers with several locations redirect to their default. Apache resolves the
segments `.` and `..` of a path, so identifiers with such segments resolve with nginx only.

## Check it

- `sha256sum -c MANIFEST.sha256` checks every file; it names `nginx.conf` and `apache.conf` if you have changed them.
- `proofs/` has a proof of every public version of each record, which `perseid verify FILE` checks; the format is in the
  documentation of Perseid. `ledger/checkpoint.txt` is the signed checkpoint, `ledger/keys.json` has the keys, and
  `ledger/leaves.txt` the hash of every entry, from which the root of the checkpoint can be computed.

## Files

- `records/`: a page and a JSON document for each record, named after the SHA-256 of the handle.
- `nginx/`, `apache/`: the maps from identifiers to records, and from records to URLs.
- `pages-only.txt`, if it exists: identifiers that are too long for a map of nginx or Apache, or whose URL is. In
  `records/`, their page has the link.
"""
